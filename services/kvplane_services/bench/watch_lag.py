"""How long after an engine sent a retention a watch at some replica shows its lease."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio

from kvplane.api.lease.v1 import lease_pb2 as pb
from kvplane.api.lease.v1 import lease_pb2_grpc
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.clock import Clock
from kvplane_services.main.process import background

_PATIENCE = 60.0
_POLL = 0.01


class LagProbe:
    """Notes when retentions were sent and when a watch showed their leases.

    Args:
        stub: `LeaseServiceStub` of the replica that is watched.
        clock: Time.

    """

    def __init__(self, *, stub: Any, clock: Clock) -> None:
        self._stub = stub
        self._clock = clock
        self._sent: dict[str, float] = {}
        self.lags: list[float] = []

    async def seen_more(self, count: int) -> None:
        """Returns once more leases than so many were shown. Raises BenchError."""
        deadline = self._clock.now() + _PATIENCE
        while len(self.lags) <= count:
            if self._clock.now() > deadline:
                raise BenchError(f"the watch shows no new lease for {_PATIENCE:.0f} s")
            await self._clock.sleep(_POLL)

    def sent(self, retention: str) -> None:
        """A frame with this retention goes now."""
        self._sent[retention] = self._clock.now()

    async def follow(self, revision: int) -> None:
        """Watches from that revision on, until cancelled. Raises BenchError."""
        try:
            async for event in self._stub.WatchLeases(
                pb.WatchLeasesRequest(after_revision=revision)
            ):
                sent = self._sent.pop(event.upserted.retention_id, None)
                if sent is not None:
                    self.lags.append(self._clock.now() - sent)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"the watch of leases broke: {error.details()}") from error
        raise BenchError("the watch of leases ended")


@contextlib.asynccontextmanager
async def lag_probe(replica: str, *, knows: str, clock: Clock) -> AsyncGenerator[LagProbe]:
    """Watches the leases of a replica from now on; `knows` is one that it must have by then.

    Raises:
        BenchError: The replica does not know that lease, or its watch broke.

    """
    async with grpc.aio.insecure_channel(replica) as channel:
        stub: Any = lease_pb2_grpc.LeaseServiceStub(channel)
        try:
            await _until_known(stub, knows, clock=clock)
            page = await stub.ListLeases(pb.ListLeasesRequest(page_size=1), timeout=60)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"the replica at {replica}: {error.details()}") from error
        probe = LagProbe(stub=stub, clock=clock)
        async with background(probe.follow(page.revision)):
            yield probe


async def _until_known(stub: Any, lease: str, *, clock: Clock) -> None:
    """Waits until a replica has a lease; what it was granted with may be on its way still."""
    deadline = clock.now() + _PATIENCE
    while True:
        try:
            await stub.GetLease(pb.GetLeaseRequest(name=lease), wait_for_ready=True, timeout=60)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND or clock.now() > deadline:
                raise
            await clock.sleep(0.1)
        else:
            return
