"""How simulated engines read each other's blocks: their side channel, both ends.

Stands for NIXL: a read is one-sided. The owner checks nothing but that it is the process that
the reader shook hands with; blocks that were freed and written again yield what they hold now.
There is no authentication, as there is none in NIXL: bind it to loopback or a private network.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp import web

from kvplane_services.clock import Clock
from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.reading import ReadFailed
from kvplane_services.sim.retentions import RetentionTable
from kvplane_services.sim.transfers import Peer, RemoteRead

# vLLM's limit for a handshake. A read itself has none.
_HANDSHAKE_SECONDS = 5.0

# A transfer copies in so many slices, spread over its time: a read that is overtaken by a
# release gets some blocks of each, as in reality.
_SLICES = 4


class SideChannel:
    """The owner's end.

    Args:
        engine_id: This process, new after every restart.
        pool: The blocks that others read.
        retentions: Told of reads.
        exported_now: The clock that this engine's handles are written in.
        staged_extension: Seconds by which a waiting decode leg keeps its staged blocks.
        read_late: Called when a read is reported of blocks that are not held any more.
        clock: Time.
        pace: What faults do to it; a frozen engine accepts, and answers nothing.

    """

    def __init__(
        self,
        *,
        engine_id: str,
        pool: BlockPool,
        retentions: RetentionTable,
        exported_now: Callable[[], float],
        staged_extension: float,
        read_late: Callable[[], None],
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._engine_id = engine_id
        self._pool = pool
        self._retentions = retentions
        self._exported_now = exported_now
        self._staged_extension = staged_extension
        self._read_late = read_late
        self._clock = clock
        self._pace = pace

    def application(self) -> web.Application:
        """The HTTP application."""
        application = web.Application()
        application.router.add_post("/sim/handshake", self._handshake)
        application.router.add_post("/sim/blocks", self._blocks)
        application.router.add_post("/sim/read", self._read)
        application.router.add_post("/sim/keep-alive", self._keep_alive)
        return application

    async def _handshake(self, request: web.Request) -> web.Response:
        await self._addressed(request)
        return web.json_response({"clock": self._exported_now()})

    async def _blocks(self, request: web.Request) -> web.Response:
        body = await self._addressed(request)
        try:
            content = b"".join(self._pool.copy_out(int(i)) for i in body["block_ids"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"no such blocks: {error}") from error
        return web.Response(body=content, content_type="application/octet-stream")

    async def _read(self, request: web.Request) -> web.Response:
        body = await self._addressed(request)
        if not self._retentions.read(str(body.get("request_id", ""))):
            self._read_late()
        return web.Response(status=204)

    async def _keep_alive(self, request: web.Request) -> web.Response:
        body = await self._addressed(request)
        request_ids = body.get("request_ids")
        if isinstance(request_ids, list):
            self._retentions.extend(
                map(str, request_ids), self._clock.now() + self._staged_extension
            )
        return web.Response(status=204)

    async def _addressed(self, request: web.Request) -> dict[str, Any]:
        await self._pace.thawed(self._clock)
        try:
            body = await request.json()
        except ValueError as error:
            raise web.HTTPBadRequest(text="not JSON") from error
        if not isinstance(body, dict):
            raise web.HTTPBadRequest(text="not an object")
        if body.get("engine_id") != self._engine_id:
            raise web.HTTPGone(text="another engine listens here by now")
        return body


class PeerClient:
    """The reader's end. Implements `reading.Peers`.

    Args:
        http: Session to use; the caller closes it.
        clock: Time.
        block_bytes: Bytes per block.
        fails: Whether a fault makes the next read fail.

    """

    def __init__(
        self,
        *,
        http: aiohttp.ClientSession,
        clock: Clock,
        block_bytes: int,
        fails: Callable[[], bool],
    ) -> None:
        self._http = http
        self._clock = clock
        self._block_bytes = block_bytes
        self._fails = fails
        self._ahead: dict[Peer, float] = {}

    async def clock_ahead(self, peer: Peer) -> float:
        """See `Peers.clock_ahead`. Shakes hands with a peer that it does not know yet."""
        if peer not in self._ahead:
            self._ahead[peer] = await self._shake_hands(peer)
        return self._ahead[peer]

    async def read(self, read: RemoteRead, *, seconds: float) -> Sequence[bytes]:
        """See `Peers.read`."""
        if self._fails():
            raise ReadFailed("a fault was asked for")
        contents: list[bytes] = []
        step = max(1, -(-len(read.block_ids) // _SLICES))
        slices = range(0, len(read.block_ids), step)
        for start in slices:
            await self._clock.sleep(seconds / len(slices))
            ids = read.block_ids[start : start + step]
            joined = await self._post(read.peer, "blocks", {"block_ids": list(ids)})
            if len(joined) != len(ids) * self._block_bytes:
                raise ReadFailed("the other engine's blocks have another size")
            contents += [
                joined[i : i + self._block_bytes] for i in range(0, len(joined), self._block_bytes)
            ]
        return contents

    async def tell_read(self, peer: Peer, request_id: str) -> None:
        """See `Peers.tell_read`."""
        await self._post(peer, "read", {"request_id": request_id})

    async def keep_alive(self, peer: Peer, request_ids: Sequence[str]) -> None:
        """See `Peers.keep_alive`."""
        try:
            await self._post(
                peer, "keep-alive", {"request_ids": list(request_ids)}, seconds=_HANDSHAKE_SECONDS
            )
        except ReadFailed:
            return  # The read will find out.

    async def _shake_hands(self, peer: Peer) -> float:
        before = self._clock.now()
        answer = await self._post(peer, "handshake", {}, seconds=_HANDSHAKE_SECONDS, json=True)
        if self._clock.now() - before > _HANDSHAKE_SECONDS:
            # This engine stood still meanwhile: the peer's clock could be off by as much.
            raise ReadFailed("the handshake took too long")
        # As if the peer had told its time at once: it cannot be further ahead than that.
        return float(answer["clock"]) - before

    async def _post(
        self,
        peer: Peer,
        action: str,
        body: dict[str, Any],
        *,
        seconds: float | None = None,
        json: bool = False,
    ) -> Any:
        host = f"[{peer.host}]" if ":" in peer.host else peer.host
        url = f"http://{host}:{peer.port}/sim/{action}"
        try:
            async with self._http.post(
                url,
                json={"engine_id": peer.engine_id, **body},
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=_HANDSHAKE_SECONDS),
            ) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    self._ahead.pop(peer, None)
                    raise ReadFailed(await answer.text())
                return await answer.json() if json else await answer.read()
        except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
            self._ahead.pop(peer, None)
            raise ReadFailed(str(error) or type(error).__name__) from error
