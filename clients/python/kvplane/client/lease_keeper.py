"""A holder's side of leases: claims many leases over one stream, and knows when to stop.

What a claim means: while it stands, the plane renews the lease at its engine, whatever its
policy would do. Memory pressure at the engine can end a lease nevertheless; the holder hears
of that at the next renewal. `KeptLease.deadline` is counted from when the renewal was sent,
minus a margin, so that the holder always gives up before the plane does.

Closing a keeper drops its claims: the leases go on by policy. Orphaning only stops renewing:
the claims stand until they lapse, for a successor that takes over.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence

from kvplane.api.lease.v1 import lease_pb2
from kvplane.client.addresses import normalize_targets
from kvplane.client.backoff import Backoff
from kvplane.client.channel import Tls
from kvplane.client.clock import Clock, SystemClock
from kvplane.client.engine_wire import duration_of, seconds_of
from kvplane.client.errors import KvplaneClientError
from kvplane.client.frames import StreamEnded, exchange_within, until, wait_set, within
from kvplane.client.kept_lease import KeptLease, LostReason
from kvplane.client.moving import here_or_elsewhere, leave_after, leave_ended
from kvplane.client.names import lease_name
from kvplane.client.outage import Outage
from kvplane.client.timing import KeeperTiming
from kvplane.client.transports import RenewalStream, RenewalTransport

_log = logging.getLogger(__name__)

# The most renewals that the plane takes in one frame.
_FRAME_LIMIT = 1024


class LeaseKeeper:
    """Claims leases for one holder. Use from one event loop: `run()` in a task that you own.

    Args:
        target: Address of LeaseService, `host:port`; several, separated by commas, for a plane
            of several replicas.
        holder: Who claims, for example `agents/7`. At most 256 bytes.
        on_lost: Called once, in the event loop, for each lease that may not be used any more.
        timing: Durations.
        tls: Encryption; None for none.
        clock: Time, for tests.
        transport: Replaces gRPC, for tests.

    Raises:
        ValueError: An address is not `host:port`.

    """

    def __init__(
        self,
        *,
        target: str,
        holder: str,
        on_lost: Callable[[KeptLease], None] | None = None,
        timing: KeeperTiming | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
        transport: RenewalTransport | None = None,
    ) -> None:
        self._target = normalize_targets(target)
        self._holder = holder
        self._on_lost = on_lost
        self._timing = timing or KeeperTiming()
        self._tls = tls
        self._clock: Clock = clock or SystemClock()
        self._transport = transport
        self._backoff = Backoff(
            first=self._timing.first_backoff, longest=self._timing.longest_backoff
        )
        self._outage = Outage(log=_log, who=holder, target=self._target)
        self._kept: dict[str, KeptLease] = {}
        self._dropped: dict[str, KeptLease] = {}
        self._wake = asyncio.Event()
        self._deadlines_changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sequence = 0
        self._undecided = False
        self._stream: RenewalStream | None = None

    def __repr__(self) -> str:
        """For logs."""
        return f"LeaseKeeper({self._holder!r}, {self._target!r}, leases={len(self._kept)})"

    @property
    def kept(self) -> Sequence[KeptLease]:
        """The leases that are claimed now."""
        return tuple(self._kept.values())

    def keep(self, lease: str, fencing_token: int, *, ttl: float = 0.0) -> KeptLease:
        """Claims a lease from now on; a claim with an older token is replaced.

        Args:
            lease: Its name or id.
            fencing_token: Token of the grant.
            ttl: Seconds that each claim asks for; 0 for the plane's default.

        """
        name = lease_name(lease)
        deadline = self._clock.now() + self._timing.unanswered_ttl - self._timing.margin
        kept = KeptLease(name=name, fencing_token=fencing_token, ttl=ttl, deadline=deadline)
        self._kept[name] = kept
        self._dropped.pop(name, None)
        self._deadlines_changed.set()
        self._wake.set()
        return kept

    def drop(self, kept: KeptLease) -> None:
        """Gives a claim up; the lease goes on by policy. A lost lease is ignored."""
        if self._forget(kept):
            self._dropped[kept.name] = kept
            self._wake.set()

    def orphan(self, kept: KeptLease) -> None:
        """Stops renewing a claim, which then stands until it lapses."""
        self._forget(kept)

    async def run(self) -> None:
        """Renews until closed, orphaned or cancelled. Trouble on the network never leaves it."""
        if not self._idle.is_set():
            raise RuntimeError("this keeper already runs")
        if self._closing.is_set():
            return
        self._idle.clear()
        try:
            await until(self._closing, self._serve())
        finally:
            self._idle.set()

    async def aclose(self) -> None:
        """Stops, and drops all claims; waits for the plane for a short while. Idempotent."""
        await self._stop(drop=True)

    async def aorphan(self) -> None:
        """Stops, and leaves all claims to lapse by themselves. Idempotent."""
        await self._stop(drop=False)

    async def _stop(self, *, drop: bool) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        await self._idle.wait()
        if drop:
            self._dropped.update(self._kept)
        self._kept.clear()
        transport = self._transport
        if transport is None:
            return
        try:
            if self._dropped:
                await self._drop_at_last(transport)
        finally:
            await transport.aclose()

    async def _drop_at_last(self, transport: RenewalTransport) -> None:
        goodbye = here_or_elsewhere(lambda: self._drop_all(transport), transport)
        try:
            await within(self._timing.close_timeout, goodbye, clock=self._clock)
        except KvplaneClientError as error:
            _log.info("%s: claims could not be dropped and will lapse: %s", self._holder, error)

    async def _drop_all(self, transport: RenewalTransport) -> None:
        stream = transport.open()
        try:
            for batch in _batches(tuple(self._dropped.values())):
                await self._exchange(stream, batch, drop=True)
        finally:
            stream.cancel()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_deadlines())
            tasks.create_task(self._renew())

    async def _renew(self) -> None:
        transport = self._transport or self._dial()
        while True:
            try:
                while True:
                    self._wake.clear()
                    interval = math.inf
                    if self._kept or self._dropped:
                        interval = await self._renew_all(self._stream or self._open(transport))
                    await wait_set(self._wake, interval, clock=self._clock)
            except StreamEnded:
                await leave_ended(transport, who=self._holder, log=_log)
                await self._clock.sleep(self._backoff.next())
            except KvplaneClientError as error:
                await leave_after(error, transport, self._outage)
                await self._clock.sleep(max(self._backoff.next(), error.retry_after or 0.0))
            finally:
                if self._stream is not None:
                    stream, self._stream = self._stream, None
                    stream.cancel()

    def _open(self, transport: RenewalTransport) -> RenewalStream:
        stream = self._stream = transport.open()
        # An end is noticed at once, not at the next renewal.
        stream.on_over(lambda: self._wake.set() if self._stream is stream else None)
        return stream

    def _dial(self) -> RenewalTransport:
        # gRPC starts threads, which a host that forks before `run` must not have.
        from kvplane.client.grpc_frames import GrpcRenewalTransport  # noqa: PLC0415 - see above

        self._transport = GrpcRenewalTransport(self._target, tls=self._tls)
        return self._transport

    async def _renew_all(self, stream: RenewalStream) -> float:
        """Renews and drops everything once; returns how long to wait before the next time."""
        interval = math.inf
        for batch in _batches(tuple(self._dropped.values())):
            interval = min(interval, await self._exchange(stream, batch, drop=True))
        for batch in _batches(self.kept):
            interval = min(interval, await self._exchange(stream, batch, drop=False))
        self._outage.over()
        if self._undecided:
            # The manager could not say; its interval may be longer than a lease still lasts.
            self._undecided = False
            earliest = min((kept.deadline for kept in self.kept), default=math.inf)
            left = max(self._timing.first_backoff, (earliest - self._clock.now()) / 2)
            return min(interval, self._backoff.next(), left)
        self._backoff.reset()
        return interval

    async def _exchange(
        self, stream: RenewalStream, batch: Sequence[KeptLease], *, drop: bool
    ) -> float:
        frame = self._frame(batch, drop=drop)
        sent_at = self._clock.now()
        answer = await exchange_within(
            stream, frame, seconds=self._timing.answer_timeout, clock=self._clock
        )
        if len(answer.results) != len(batch):
            raise KvplaneClientError(
                f"{len(answer.results)} results for {len(batch)} renewals", code="DATA_LOSS"
            )
        for kept, result in zip(batch, answer.results, strict=True):
            if drop:
                if self._dropped.get(kept.name) is kept:
                    del self._dropped[kept.name]
            else:
                self._settle(kept, result, sent_at)
        # A plane that names no interval must not make the holder spin.
        return seconds_of(answer.renew_interval) or 1.0

    def _settle(
        self, kept: KeptLease, result: lease_pb2.LeaseRenewalResult, sent_at: float
    ) -> None:
        if self._kept.get(kept.name) is not kept:
            return  # Dropped, orphaned or replaced while the frame was in flight.
        match result.outcome:
            case lease_pb2.RENEWAL_OUTCOME_RENEWED:
                kept.deadline = sent_at + seconds_of(result.ttl) - self._timing.margin
                self._deadlines_changed.set()
            case lease_pb2.RENEWAL_OUTCOME_UNAVAILABLE:
                self._undecided = True
            case lease_pb2.RENEWAL_OUTCOME_FENCED:
                self._lose(kept, LostReason.FENCED)
            case _:
                self._lose(kept, LostReason.NOT_FOUND)

    async def _watch_deadlines(self) -> None:
        while True:
            self._deadlines_changed.clear()
            now = self._clock.now()
            for kept in self.kept:
                if kept.deadline <= now:
                    self._lose(kept, LostReason.DEADLINE)
            earliest = min((kept.deadline for kept in self.kept), default=math.inf)
            await wait_set(self._deadlines_changed, earliest - now, clock=self._clock)

    def _lose(self, kept: KeptLease, reason: LostReason) -> None:
        if self._forget(kept):
            kept.lost = reason
            if self._on_lost is not None:
                self._on_lost(kept)

    def _forget(self, kept: KeptLease) -> bool:
        if self._kept.get(kept.name) is not kept:
            return False
        del self._kept[kept.name]
        return True

    def _frame(self, batch: Sequence[KeptLease], *, drop: bool) -> lease_pb2.RenewLeasesRequest:
        self._sequence += 1
        return lease_pb2.RenewLeasesRequest(
            sequence=self._sequence,
            holder=self._holder,
            renewals=[
                lease_pb2.LeaseRenewal(
                    name=kept.name,
                    fencing_token=kept.fencing_token,
                    ttl=duration_of(kept.ttl),
                    drop=drop,
                )
                for kept in batch
            ],
        )


def _batches(leases: Sequence[KeptLease]) -> Iterator[Sequence[KeptLease]]:
    for start in range(0, len(leases), _FRAME_LIMIT):
        yield leases[start : start + _FRAME_LIMIT]
