"""Conversations through several gateways, and what became of each of their turns."""

import http.client
import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvplane_services.clock import SystemClock
from tests.support.programs import pause, wait_until
from tests.support.vllm_engines import MODEL

_SYSTEM = "You answer in one line, and you name the file and the line a fault comes from. " * 4
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's name and loopback port."""

    name: str
    port: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as its client saw it; times on the monotonic clock.

    Attributes:
        session: Whose.
        number: Of the turn in its conversation, from 0.
        gateway: Which gateway served it, or broke off.
        status: HTTP status; 0 if there was no whole answer.
        error: What went wrong, if anything.
        strategy: How it was served, as the gateway says.
        held_tokens: Tokens that were known to be held, as the gateway says.

    """

    session: str
    number: int
    gateway: str
    status: int
    error: str
    strategy: str
    held_tokens: int
    began: float
    ended: float

    @property
    def served(self) -> bool:
        """Whether the whole answer came."""
        return self.status == 200 and not self.error


@dataclass
class Conversation:
    """A chat that streams and keeps its history."""

    session: str = field(default_factory=lambda: f"s-{uuid.uuid4().hex[:12]}")
    messages: list[dict[str, str]] = field(
        default_factory=lambda: [{"role": "system", "content": _SYSTEM}]
    )
    turns: int = 0

    def ask(self, gateway: Gateway, *, strategy: str = "auto", tokens: int = 16) -> Turn:
        """One turn. Raises ConnectionRefusedError if nobody listens; nothing was sent then."""
        clock = SystemClock()
        began = clock.now()
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=_PATIENCE)
        connection.connect()
        self.messages.append({"role": "user", "content": f"And what about part {self.turns}?"})
        status, error, headers, text = 0, "", {}, ""
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(
                    {
                        "model": MODEL,
                        "messages": self.messages,
                        "max_tokens": tokens,
                        "temperature": 0,
                        "stream": True,
                    }
                ),
                {
                    "Content-Type": "application/json",
                    "x-session-id": self.session,
                    "x-kvplane-strategy": strategy,
                },
            )
            answer = connection.getresponse()
            body = answer.read().decode()
            status, headers = answer.status, dict(answer.headers.items())
            text, error = _parse(body) if status == 200 else ("", body[:300])
        except (OSError, http.client.HTTPException) as failure:
            status, error = 0, f"{type(failure).__name__}: {failure}"
        finally:
            connection.close()
        if error:
            self.messages.pop()
        else:
            self.messages.append({"role": "assistant", "content": text})
        number, self.turns = self.turns, self.turns + (not error)
        return Turn(
            session=self.session,
            number=number,
            gateway=gateway.name,
            status=status,
            error=error,
            strategy=headers.get("x-kvplane-strategy", ""),
            held_tokens=int(headers.get("x-kvplane-held-tokens", 0)),
            began=began,
            ended=clock.now(),
        )


class Crowd:
    """Clients that hold conversations until they are told to stop.

    Each turn goes to any gateway that is ready, as a balancer's probe saw it; where nobody
    listens the next one is tried. Nothing is tried again once a byte was sent.

    Args:
        gateways: All that there are.
        clients: How many conversations are held at once.
        think: Seconds between two turns of one.

    """

    def __init__(self, gateways: Sequence[Gateway], *, clients: int, think: float = 0.3) -> None:
        self._gateways = tuple(gateways)
        self._think = think
        self._ready: set[Gateway] = set()
        self._shunned: set[str] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._turns: list[Turn] = []
        self._faults: list[BaseException] = []
        self.conversations = [Conversation() for _ in range(clients)]
        # Each held while a turn of that client runs.
        self._talking = [threading.Lock() for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._converse, args=(number,)) for number in range(clients)
        ]
        self._threads += [
            threading.Thread(target=self._probe, args=(one,)) for one in self._gateways
        ]

    @property
    def turns(self) -> list[Turn]:
        """All turns so far, in the order in which they ended."""
        with self._lock:
            return list(self._turns)

    def shun(self, *names: str) -> None:
        """Sends no new turn to these gateways; no names lift that."""
        self._shunned = set(names)

    def start(self) -> None:
        """Starts talking, and waits until every conversation had a turn."""
        for thread in self._threads:
            thread.start()
        self.until_all_spoke()

    def retire(self, number: int) -> Conversation:
        """Has a client begin another conversation; returns the one before, all turns over."""
        with self._talking[number]:
            before = self.conversations[number]
            self.conversations[number] = Conversation()
        return before

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside of the block nobody talks: all turns are over."""
        with ExitStack() as stack:
            for lock in self._talking:
                stack.enter_context(lock)
            yield

    def until_all_spoke(self, *, seconds: float = 60) -> None:
        """Waits until every conversation had another turn that was served."""
        already = len(self.turns)

        def spoke() -> bool:
            assert not self._faults, self._faults
            latest = {turn.session for turn in self.turns[already:] if turn.served}
            return {conversation.session for conversation in self.conversations} <= latest

        wait_until(spoke, seconds=seconds, what="every conversation has had a turn")

    def stop(self) -> None:
        """Stops once the turns that run are over."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_PATIENCE)
        assert not self._faults, self._faults

    def _converse(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                with self._talking[number]:
                    turn = self._take(self.conversations[number])
                with self._lock:
                    self._turns.append(turn)
                pause(random.uniform(0.5, 1.5) * self._think)
        except BaseException as fault:
            self._faults.append(fault)
            raise

    def _take(self, conversation: Conversation) -> Turn:
        clock = SystemClock()
        until = clock.now() + _PATIENCE
        while True:
            ready = [one for one in self._ready if one.name not in self._shunned]
            for gateway in random.sample(ready, len(ready)):
                try:
                    return conversation.ask(gateway)
                except ConnectionRefusedError:
                    self._ready.discard(gateway)
            assert clock.now() < until, "no gateway is ready"
            pause(0.02)

    def _probe(self, gateway: Gateway) -> None:
        while not self._stop.is_set():
            if is_ready(gateway):
                self._ready.add(gateway)
            else:
                self._ready.discard(gateway)
            pause(0.1)


def is_ready(gateway: Gateway) -> bool:
    """Whether a gateway says that it should be sent turns."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextmanager
def talking(gateways: Sequence[Gateway], *, clients: int = 4) -> Iterator[Crowd]:
    """Conversations that go on while the block runs."""
    crowd = Crowd(gateways, clients=clients)
    try:
        crowd.start()
        yield crowd
    finally:
        crowd.stop()


def failed(
    turns: Sequence[Turn], *, excused: Callable[[Turn], bool] = lambda _: False
) -> list[Turn]:
    """Turns that were not served, but for those with an excuse."""
    return [turn for turn in turns if not turn.served and not excused(turn)]


def _parse(body: str) -> tuple[str, str]:
    """The text of a stream's answer, and what is wrong with it."""
    events = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        return "", f"the stream ended early: {body[-300:]!r}"
    chunks: list[dict[str, Any]] = [json.loads(event) for event in events[:-1]]
    faults = [chunk for chunk in chunks if "error" in chunk]
    if faults:
        return "", f"an error in the stream: {faults[0]}"
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas), ""
