"""A whole deployment of our own processes, and conversations with it through `openai`."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from kvplane.api.lease.v1.lease_pb2 import Lease
from kvplane.client.sync import SyncPlane
from tests.support.plane_process import PlaneProcess, free_port
from tests.support.programs import wait_until
from tests.support.sim_engines import SimProcess, start_sim
from tests.support.vllm_engines import MODEL, computed, transferred

SETTINGS = """
[gateway]
response_headers = true
allow_strategy_header = true
[registration]
ttl = 3
heartbeat_interval = 0.25
"""
SYSTEM = "You answer in one line, and you name the file and the line that a fault comes from. " * 6
TOKENS = 24


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of a conversation, and what it cost the prefill engine."""

    text: str
    strategy: str
    prompt_tokens: int
    reply_tokens: int
    pulled: int
    computed: int


class Stage:
    """A plane, one prefill and one decode engine, each a process of its own.

    Args:
        folder: For settings and logs.
        settings: Of the plane, TOML.
        options: More command-line arguments of both engines.

    """

    def __init__(
        self, folder: Path, *, settings: str = SETTINGS, options: tuple[str, ...] = ()
    ) -> None:
        self._folder = folder
        self._options = options
        self._ports = {"prefill": free_port(), "decode": free_port()}
        self.plane = PlaneProcess(folder, settings)
        self.engines: dict[str, SimProcess] = {}

    def start(self) -> None:
        """Starts everything, and waits until turns are served."""
        self.plane.start()
        for role in ("prefill", "decode"):
            self.start_engine(role)

    def start_engine(self, role: str) -> None:
        """Starts an engine under its name and address, and waits until it is registered."""
        options = ["--http", f"127.0.0.1:{self._ports[role]}", *self._options]
        if role == "prefill":
            # So that what it does not compute, it pulled.
            options.append("--no-prefix-caching")
        engine = start_sim(role, plane=self.plane.target, folder=self._folder, options=(*options,))
        self.engines[role] = engine
        self.wait_registered(engine)

    def wait_registered(self, *engines: SimProcess) -> None:
        """Waits until the plane counts on these engines; all of them if none is named."""
        wanted = {f"engines/{engine.name}" for engine in engines or self.engines.values()}

        def registered() -> bool:
            with SyncPlane(self.plane.target) as client:
                found = list(client.each(client.engines.list()))
            return wanted <= {one.name for one in found if one.state == one.STATE_ACTIVE}

        wait_until(registered, seconds=15, what=f"{wanted} are registered")

    def leases(self, *, include_ended: bool = False) -> list[Lease]:
        """The live leases, or all that are remembered, oldest grant first."""
        with SyncPlane(self.plane.target) as client:
            found = client.each(client.leases.list(include_ended=include_ended))
            return sorted(found, key=lambda lease: lease.fencing_token)

    def stop(self) -> list[int]:
        """Stops everything; returns the exit codes."""
        programs = [engine.program for engine in self.engines.values()]
        codes = [program.stop() for program in programs if program.exit_code is None]
        if self.plane.program is not None and self.plane.program.exit_code is None:
            codes.append(self.plane.stop())
        return codes

    def client(self) -> OpenAI:
        """A client of the gateway; close it."""
        return OpenAI(base_url=f"{self.plane.url}/v1", api_key="sk-e2e", max_retries=0, timeout=20)


@dataclass
class Conversation:
    """A chat that streams, greedy, and keeps its history."""

    stage: Stage
    client: OpenAI
    strategy: str = "auto"
    session: str = field(default_factory=lambda: f"s-{uuid.uuid4().hex[:12]}")
    messages: list[ChatCompletionMessageParam] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM}]
    )

    def ask(self, question: str) -> Said:
        """One turn; its answer becomes history."""
        self.messages.append({"role": "user", "content": question})
        prefill = self.stage.engines["prefill"]
        before = (transferred(prefill), computed(prefill))
        answer = self.client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=self.messages,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-session-id": self.session, "x-kvplane-strategy": self.strategy},
        )
        text, prompt_tokens, reply_tokens = "", 0, 0
        with answer.parse() as chunks:
            for chunk in chunks:
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                if chunk.usage is not None:
                    prompt_tokens = chunk.usage.prompt_tokens
                    reply_tokens = chunk.usage.completion_tokens
        self.messages.append({"role": "assistant", "content": text})
        return Said(
            text=text,
            strategy=answer.headers["x-kvplane-strategy"],
            prompt_tokens=prompt_tokens,
            reply_tokens=reply_tokens,
            pulled=transferred(prefill) - before[0],
            computed=computed(prefill) - before[1],
        )

    def fork(self, *, strategy: str | None = None, session: str | None = None) -> "Conversation":
        """Another conversation with the same history so far."""
        return Conversation(
            stage=self.stage,
            client=self.client,
            strategy=strategy or self.strategy,
            session=session or f"s-{uuid.uuid4().hex[:12]}",
            messages=list(self.messages),
        )

    def recomputed(self, question: str) -> str:
        """What the next turn would answer without any reuse."""
        return self.fork(strategy="recompute").ask(question).text
