"""How an engine reads blocks of others, and what it does for blocks that it has yet to read."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from kvplane_services.clock import Clock
from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.config import ConnectorRules, EngineSpeed
from kvplane_services.sim.counters import Counters
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.request import Request
from kvplane_services.sim.transfers import Peer, RemoteRead, peer_to_tell


class ReadFailed(Exception):
    """Another engine's blocks could not be read."""


class ReadDeclined(Exception):
    """The owner may have given the blocks away before they were read."""


class Peers(Protocol):
    """How an engine reaches the side channels of others."""

    async def clock_ahead(self, peer: Peer) -> float:
        """How far the clock of a peer's handles is ahead of this engine's, at most, in seconds.

        Raises:
            ReadFailed: The owner cannot be reached, or is another process by now.

        """
        ...

    async def read(self, read: RemoteRead, *, seconds: float) -> Sequence[bytes]:
        """The content of the blocks, after about so many seconds; whatever they hold by then.

        Raises:
            ReadFailed: The owner cannot be reached, or is another process by now.

        """
        ...

    async def tell_read(self, peer: Peer, request_id: str) -> None:
        """Tells the owner that its blocks were read. Raises ReadFailed."""
        ...

    async def keep_alive(self, peer: Peer, request_ids: Sequence[str]) -> None:
        """Asks the owner to keep staged blocks for requests that still wait. Never raises."""
        ...


class Reader:
    """Reads into the blocks that a request was given.

    Args:
        peers: Other engines.
        pool: This engine's blocks.
        rules: How the connector behaves.
        speed: How long transfers take.
        counters: Told of transfers.
        clock: Time.
        pace: What faults do to it.

    """

    def __init__(
        self,
        *,
        peers: Peers,
        pool: BlockPool,
        rules: ConnectorRules,
        speed: EngineSpeed,
        counters: Counters,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._peers = peers
        self._pool = pool
        self._rules = rules
        self._speed = speed
        self._counters = counters
        self._clock = clock
        self._pace = pace

    async def load(self, request: Request, read: RemoteRead) -> str:
        """Reads, and tells the owner; returns what went wrong, empty if nothing did."""
        size = self._pool.block_size
        count = len(read.block_ids)
        tokens = min(read.tokens - request.computed, count * size)
        seconds = self._pace.factor * self._speed.transfer(tokens=tokens, blocks=count)
        started = self._clock.now()
        try:
            ahead = await self._peers.clock_ahead(read.peer)
            self._check(read, ahead, self._rules.expiry_margin)
            contents = await self._peers.read(read, seconds=seconds)
            await self._pace.thawed(self._clock)
            if not self._rules.stock:
                self._check(read, ahead, self._rules.end_margin)
        except ReadDeclined as declined:
            self._counters.expired()
            return str(declined)
        except ReadFailed as failed:
            self._counters.transfer_failed()
            return str(failed)
        first = request.computed // size
        for block_id, content in zip(request.block_ids[first:], contents, strict=False):
            self._pool.copy_in(block_id, content)
        self._counters.transferred(
            seconds=self._clock.now() - started,
            descriptors=count * self._speed.descriptors_per_block,
        )
        await self.tell(read.peer, read.request_id)
        return ""

    def _check(self, read: RemoteRead, ahead: float, margin: float) -> None:
        """Raises ReadDeclined if the blocks may be given away by now, or in a moment."""
        if read.expiry is None:
            return
        left = read.expiry - ahead - self._clock.now()
        if left <= margin:
            raise ReadDeclined(f"the handle expires in {left:.1f} s")

    async def tell(self, peer: Peer, request_id: str) -> None:
        """Tells the owner that its blocks are not needed any more by this reader."""
        try:
            await self._peers.tell_read(peer, request_id)
        except ReadFailed:
            # The KV is here, or was given up; the owner's blocks come free at their deadline.
            self._counters.transfer_failed()

    async def keep_staged(self, requests: Iterable[Request]) -> None:
        """Asks prefill engines to keep what these requests have yet to read."""
        by_peer: dict[Peer, list[str]] = {}
        for request in requests:
            owner = peer_to_tell(request.params)
            if owner is not None:
                by_peer.setdefault(owner[0], []).append(owner[1])
        for peer, request_ids in by_peer.items():
            await self._peers.keep_alive(peer, request_ids)
