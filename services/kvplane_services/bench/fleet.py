"""All engines of a benchmark, and the turns that they are given."""

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import grpc.aio

from kvplane.api.engine.v1 import engine_pb2_grpc
from kvplane_services.bench.load_engine import BenchError, Gate, LoadEngine, Tally
from kvplane_services.bench.workload import Workload
from kvplane_services.clock import Clock

_ENGINES_PER_CHANNEL = 25
_MESSAGE_BYTES = 64 * 1024 * 1024
# How often is looked whether something is so, and how long without progress until it never is.
_POLL = 0.02
_PATIENCE = 60.0


class Fleet:
    """Engines at one or more replicas, each with its share of the sessions.

    Args:
        replicas: gRPC addresses.
        engines: How many.
        sessions: How many in all, at most.
        workload: What turns leave.
        refresh: Whether handles say an expiry, and are reported again with each renewal.
        clock: Time.

    """

    def __init__(
        self,
        *,
        replicas: Sequence[str],
        engines: int,
        sessions: int,
        workload: Workload,
        refresh: bool,
        clock: Clock,
    ) -> None:
        self.tally = Tally()
        self.gate = Gate()
        self.on_sent: Callable[[str], None] = lambda _: None
        self._clock = clock
        self._turns: defaultdict[int, int] = defaultdict(int)
        self._channels = [
            grpc.aio.insecure_channel(
                replicas[number % len(replicas)],
                # A connection for each: gRPC would have all of one target share one.
                options=(
                    ("bench.number", number),
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
                ),
            )
            for number in range(max(len(replicas), engines // _ENGINES_PER_CHANNEL))
        ]
        stubs: list[Any] = [engine_pb2_grpc.EngineServiceStub(one) for one in self._channels]
        self.engines = [
            LoadEngine(
                engine_id=f"bench-{number:04d}",
                stub=stubs[number % len(stubs)],
                workload=workload,
                sessions=-(-sessions // engines),
                refresh=refresh,
                tally=self.tally,
                gate=self.gate,
                clock=clock,
                on_sent=self._note_sent,
            )
            for number in range(engines)
        ]

    async def register(self) -> None:
        """Registers all engines, one after the other. Raises BenchError."""
        for number, engine in enumerate(self.engines):
            await engine.register(number)

    def loops(self, *, batch: int) -> list[Coroutine[Any, Any, None]]:
        """The engines' heartbeats, until cancelled; at most `batch` new retentions a frame."""
        return [engine.run(batch=batch) for engine in self.engines]

    async def close(self) -> None:
        """Ends all connections."""
        for channel in self._channels:
            await channel.close(None)

    def take_turn(self, session: int) -> None:
        """The session's next turn finishes at its engine."""
        turn = self._turns[session]
        self._turns[session] += 1
        self.engines[session % len(self.engines)].submit(session, turn)

    def take_turns(self, sessions: Iterable[int]) -> None:
        """The next turn of each finishes."""
        for session in sessions:
            self.take_turn(session)

    async def until(self, so: Callable[[], bool], *, what: str) -> None:
        """Waits until something is so.

        Raises:
            BenchError: It is not, and for a minute no engine was told anything new.

        """
        before, since = self._progress(), self._clock.now()
        while not so():
            await self._clock.sleep(_POLL)
            progress = self._progress()
            if progress != before:
                before, since = progress, self._clock.now()
            elif self._clock.now() - since > _PATIENCE:
                raise BenchError(f"{what}: nothing happened for {_PATIENCE:.0f} s")

    async def until_granted(self, count: int) -> None:
        """Waits until so many leases were granted in all. Raises BenchError."""
        await self.until(lambda: self.tally.granted >= count, what=f"{count} leases")

    async def until_renewed(self, count: int) -> None:
        """Waits until so many renewals were told in all. Raises BenchError."""
        await self.until(lambda: self.tally.renewed >= count, what=f"{count} renewals")

    def _note_sent(self, retention: str) -> None:
        self.on_sent(retention)

    def _progress(self) -> tuple[int, int, int]:
        return self.tally.granted, self.tally.renewed, self.tally.released
