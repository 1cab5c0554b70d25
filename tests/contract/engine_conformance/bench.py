"""A pair of engines on the bench, of whichever kind, and the plane that they report to."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from kvplane.api.lease.v1.lease_pb2 import Lease, LeaseRenewal
from kvplane.client.engine_wire import duration_of
from kvplane.client.sync import SyncPlane
from tests.support.programs import wait_until
from tests.support.vllm_engines import (
    MODEL,
    Messages,
    Reply,
    Served,
    ServedPair,
    computed,
    metric,
    transferred,
)

_QUESTION = "Which change broke the replication test of the block service? The log says: "


@dataclass(frozen=True, slots=True)
class Answered:
    """An HTTP answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class Spent:
    """Where an engine's prompt tokens came from, as the engine counted."""

    computed: int
    transferred: int


@dataclass(frozen=True, slots=True)
class Bench:
    """What a test has.

    Attributes:
        pair: The engines; the prefill engine has no prefix cache.
        plane: The plane's client.
        block_size: Tokens per KV block.
        blocks: KV blocks of the decode engine.
        lease_ttl: Seconds that a lease lasts unless somebody claims it.
        staged_ttl: Seconds that the prefill engine keeps blocks for a decode leg.

    """

    pair: ServedPair
    plane: SyncPlane
    block_size: int
    blocks: int
    lease_ttl: float
    staged_ttl: float

    def spent(self, engine: Served) -> Spent:
        """Counts so far; subtract with `since`."""
        return Spent(computed(engine), transferred(engine))

    def since(self, engine: Served, before: Spent) -> Spent:
        """What was counted after `before`."""
        now = self.spent(engine)
        return Spent(now.computed - before.computed, now.transferred - before.transferred)

    def leases(self, session: str, *, ended: bool = False) -> list[Lease]:
        """The leases of a session, oldest grant first."""
        name = f"sessions/default:{MODEL}::{session}"
        found = self.plane.each(self.plane.leases.list(session=name, include_ended=ended))
        return sorted(found, key=lambda lease: lease.fencing_token)

    def lease(self, session: str) -> Lease:
        """Waits for a session's live lease, and claims it so that it stays."""
        wait_until(lambda: bool(self.leases(session)), seconds=5, what=f"a lease of {session}")
        lease = self.leases(session)[-1]
        self.claim(lease)
        return lease

    def claim(self, lease: Lease, *, seconds: float = 60) -> None:
        """Makes the plane renew a lease for a while."""
        renewal = LeaseRenewal(
            name=lease.name, fencing_token=lease.fencing_token, ttl=duration_of(seconds)
        )
        self.plane.run(self.plane.leases.renew("tests", [renewal]))

    def drop(self, lease: Lease) -> None:
        """Gives the claim up."""
        renewal = LeaseRenewal(name=lease.name, fencing_token=lease.fencing_token, drop=True)
        self.plane.run(self.plane.leases.renew("tests", [renewal]))

    def handle(self, session: str) -> dict[str, Any]:
        """The handle of a session's live lease, as a router would hand it out now."""
        found: dict[str, Any] = json.loads(self.lease(session).handle.kv_transfer_params)
        return found

    def used_blocks(self) -> int:
        """Blocks in use at the decode engine, by its own usage metric."""
        return round(metric(self.pair.decode, "vllm:kv_cache_usage_perc") * self.blocks)


def new_session() -> str:
    """A session that no other test has."""
    return f"s-{uuid.uuid4().hex[:12]}"


def opening(session: str, *, repeat: int = 8) -> Messages:
    """A first message of some hundred tokens, unlike that of any other session."""
    return [{"role": "user", "content": f"{session} {_QUESTION * repeat}"}]


def continued(messages: Messages, reply: Reply, more: str = "And then?") -> Messages:
    """The next turn's messages."""
    return [
        *messages,
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": more},
    ]


def call(
    engine: Served, path: str, body: bytes | None = None, *, kind: str = "application/json"
) -> Answered:
    """One HTTP exchange, whatever its status."""
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{engine.url}{path}", body, {"Content-Type": kind} if body is not None else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            return Answered(answer.status, _lower(answer.headers), answer.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return Answered(refused.code, _lower(refused.headers), refused.read().decode())


def _lower(headers: Message) -> Mapping[str, str]:
    return {name.lower(): value for name, value in headers.items()}
