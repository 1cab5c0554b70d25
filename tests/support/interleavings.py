"""Reads against releases of what they read, and against what is written there next, at random.

The decode engine is so short of memory that a prompt which waits for a retention's blocks is
computed into them at once when they come free. Each round sets a read, a release and such a
prompt off around the same moment, holds the read up before, within or after its data, and compares
the answer with one that was computed from nothing.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.clock import SystemClock
from kvplane_services.local.engines import EnginePair
from tests.support.programs import pause
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import Messages, Reply, ask, local_turn

# Blocks of the decode engine, of 128 tokens. A history takes 9, a prompt that writes over it 15.
DECODE_BLOCKS = 20
MAX_TOKENS = 2048
_HISTORY, _OTHER = 1050, 1850
_TOKENS = 8
# What recomputing differs by in float32 is a hundredth of this.
_TOLERANCE = 1e-3
_PLACES = ("before", "within", "after")
# How long to wait for what has to come.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One round; seconds.

    Attributes:
        pauses: How long the reader stands still, and where.
        release: When the retention is released after the reader was asked; before it, if negative.
        write: When the prompt that writes over it is sent, likewise.

    """

    pauses: dict[str, float]
    release: float
    write: float


@dataclass(slots=True)
class Tally:
    """What came of rounds.

    Attributes:
        rounds: How many.
        wrong: Answers that differ from the recomputed ones.
        wrong_but_accepted: Those of them whose words said that all was well.
        verdicts: What words said, by name; NONE where nothing was read.
        seconds: From question to answer at the reader, by verdict.

    """

    rounds: int = 0
    wrong: int = 0
    wrong_but_accepted: int = 0
    verdicts: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


def random_plan(dice: random.Random) -> Plan:
    """A round in which anything may come before anything."""
    place = dice.choice((*_PLACES, None))
    pauses = {place: dice.uniform(0.002, 0.25)} if place else {}
    release = dice.uniform(-0.1, 0.15)
    return Plan(pauses, release, release + dice.uniform(-0.05, 0.05))


class Interleavings:
    """Rounds on a pair with little memory.

    Args:
        pair: Engines whose connector is `in_engines/held_reads`, the decode engine of the size
            above. Prefill stages 9 blocks a round for a decode leg that does not come.
        plane: Theirs.
        folder: Of the files that hold reads up.
        histories: How many different conversations there are.

    """

    def __init__(
        self, pair: EnginePair, plane: RecordingPlane, folder: Path, *, histories: int = 8
    ) -> None:
        self._pair = pair
        self._plane = plane
        self._folder = folder
        self._clock = SystemClock()
        self._histories: list[Messages] = [
            [{"role": "user", "content": _text(f"history {number}", _HISTORY)}]
            for number in range(histories)
        ]
        self._references: dict[int, tuple[Messages, Reply]] = {}
        self._round = 0

    def run(
        self,
        plans: Sequence[Plan],
        *,
        trusting: bool,
        progress: Callable[[Tally], None] = lambda _: None,
    ) -> Tally:
        """Plays rounds; `trusting` uses what words refuse, so that it can be seen."""
        tally = Tally()
        trust = self._folder / "trusting"
        if trusting:
            trust.touch()
        try:
            with ThreadPoolExecutor(2) as threads:
                for plan in plans:
                    self._play(plan, tally, threads)
                    progress(tally)
        finally:
            trust.unlink(missing_ok=True)
            (self._folder / "pauses").unlink(missing_ok=True)
        return tally

    def validate(self, reads: int) -> list[float]:
        """Reads what nobody gives away; returns what each validation took, in seconds."""
        session = f"undisturbed-{id(self)}"
        first = local_turn(self._pair, session, self._histories[0], max_tokens=_TOKENS)
        messages, _ = self._reference(0, first)
        retention = self._plane.wait_for_session(session)
        handle: dict[str, Any] = json.loads(retention.handle.kv_transfer_params)
        known = len(self._verdicts())
        for _ in range(reads):
            self._ask(messages, handle)
        self._release(retention.retention_id, 0)
        return [seconds for name, seconds in self._verdicts()[known:] if name == "ACCEPTED"]

    def _play(self, plan: Plan, tally: Tally, threads: ThreadPoolExecutor) -> None:
        self._round += 1
        number = self._round % len(self._histories)
        session = f"round-{self._round}-{id(tally)}"
        first = local_turn(self._pair, session, self._histories[number], max_tokens=_TOKENS)
        messages, reference = self._reference(number, first)
        retention = self._plane.wait_for_session(session)
        handle: dict[str, Any] = json.loads(retention.handle.kv_transfer_params)
        known = len(self._verdicts())
        (self._folder / "pauses").write_text(json.dumps(plan.pauses))
        asked_at = self._clock.now() + max(0.0, -plan.release, -plan.write)

        written = threads.submit(self._write_over, asked_at + plan.write)
        released = threads.submit(self._release, retention.retention_id, asked_at + plan.release)
        self._until(asked_at)
        started = self._clock.now()
        reply = self._ask(messages, handle)
        took = self._clock.now() - started

        released.result()
        written.result()
        ended = retention.retention_id
        self._plane.wait(lambda: ended in self._plane.ended, seconds=_PATIENCE, what="its end")
        (verdict, _), *_ = [*self._verdicts()[known:], ("NONE", 0.0)]
        wrong = _differ(reply, reference)
        tally.rounds += 1
        tally.verdicts[verdict] += 1
        tally.seconds.setdefault(verdict, []).append(took)
        tally.wrong += wrong
        tally.wrong_but_accepted += wrong and verdict == "ACCEPTED"

    def _reference(self, number: int, first: Reply) -> tuple[Messages, Reply]:
        """The next turn of a history, and what it is answered with from nothing."""
        if number not in self._references:
            messages = [
                *self._histories[number],
                {"role": "assistant", "content": first.text},
                {"role": "user", "content": "And then?"},
            ]
            self._references[number] = messages, self._ask(messages, None)
        return self._references[number]

    def _ask(self, messages: Messages, handle: dict[str, Any] | None) -> Reply:
        return ask(
            self._pair.prefill,
            messages,
            params=handle,
            max_tokens=_TOKENS,
            seconds=_PATIENCE,
            logprobs=True,
        )

    def _write_over(self, at: float) -> None:
        self._until(at)
        other: Messages = [{"role": "user", "content": _text(f"other {self._round}", _OTHER)}]
        ask(self._pair.decode, other, max_tokens=1, seconds=_PATIENCE)

    def _release(self, retention_id: str, at: float) -> None:
        self._until(at)
        self._plane.releases[retention_id] = lease_pb2.END_REASON_RELEASED

    def _until(self, at: float) -> None:
        pause(max(0.0, at - self._clock.now()))

    def _verdicts(self) -> list[tuple[str, float]]:
        found = self._folder / "verdicts"
        lines = found.read_text().splitlines() if found.exists() else []
        return [(name, float(seconds)) for name, seconds in map(str.split, lines)]


def _differ(reply: Reply, reference: Reply) -> bool:
    return reply.token_ids != reference.token_ids or any(
        abs(mine - theirs) > _TOLERANCE
        for mine, theirs in zip(reply.logprobs, reference.logprobs, strict=True)
    )


def _text(seed: str, length: int) -> str:
    """Characters, which are tokens, that begin like those of no other seed."""
    dice = random.Random(seed)
    return "".join(dice.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(length))
