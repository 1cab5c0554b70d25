"""Renewal of etcd leases, all over one stream."""

import asyncio
from collections.abc import AsyncIterator, Callable

from kvplane.client.replicas import Replica
from kvplane_services.adapters.etcd.grpc_calls import NodeCalls
from kvplane_services.adapters.etcd.grpc_stream import NodeStream
from kvplane_services.etcd_api.v3 import rpc_pb2, rpc_pb2_grpc

_Stream = NodeStream[rpc_pb2.LeaseKeepAliveRequest, rpc_pb2.LeaseKeepAliveResponse]

# How often it is looked whether etcd owes an answer for too long.
_LOOK = 0.5


class _Renewals:
    """Requests that were sent and wait for their answers, which come in the same order."""

    def __init__(self, calls: NodeCalls, stream: _Stream, leases: AsyncIterator[int]) -> None:
        self._clock = calls.clock
        self._patience = calls.config.silence
        self._stream = stream
        self._leases = leases
        self._owed = 0
        self._since = 0.0

    async def send(self) -> None:
        """Sends a request for every lease that is named, to the last."""
        try:
            async for lease in self._leases:
                if not self._owed:
                    self._since = self._clock.now()
                self._owed += 1
                await self._stream.send(rpc_pb2.LeaseKeepAliveRequest(ID=lease))
        finally:
            await self._stream.finish()

    async def answers(self) -> AsyncIterator[tuple[int, int]]:
        """Ids and remaining seconds as they come. Raises EOFError after the last."""
        while True:
            answer = await self._stream.receive(_LOOK)
            if answer is not None:
                self._owed -= 1
                self._since = self._clock.now()
                yield answer.ID, answer.TTL
            elif self._owed and self._clock.now() - self._since >= self._patience:
                raise await self._stream.silent("does not answer renewals")


async def keep_alive(
    calls: NodeCalls, leases: AsyncIterator[int]
) -> AsyncIterator[tuple[int, int]]:
    """See `EtcdBackend.keep_alive`."""
    stream = await _Stream.open(calls, _keep_alive_at)
    renewals = _Renewals(calls, stream, leases)
    sending = asyncio.ensure_future(renewals.send())
    try:
        async for lease, seconds in renewals.answers():
            yield lease, seconds
    except EOFError:
        if not sending.done():
            raise await stream.silent("ended the stream of renewals") from None
        sending.result()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await stream.close()


def _keep_alive_at(node: Replica) -> Callable[..., object]:
    method: Callable[..., object] = node.stub(rpc_pb2_grpc.LeaseStub).LeaseKeepAlive
    return method
