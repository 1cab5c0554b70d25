"""What a lease is. Pure data; see lease.proto for the promises and each field's meaning."""

import datetime as dt
import enum
import sys
from dataclasses import dataclass

from kvplane_services.lease import packing
from kvplane_services.session.model import SessionKey


class EndReason(enum.Enum):
    """Why a lease ended."""

    RELEASED = "released"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    RECLAIMED = "reclaimed"
    ENGINE_LOST = "engine_lost"
    FENCED = "fenced"
    CONSUMED = "consumed"


class LeaseState(enum.Enum):
    """The lifecycle of a lease."""

    ACTIVE = "active"
    RELEASING = "releasing"
    ENDED = "ended"


class RenewalOutcome(enum.Enum):
    """What happened to one renewal."""

    RENEWED = "renewed"
    NOT_FOUND = "not_found"
    FENCED = "fenced"
    UNAVAILABLE = "unavailable"


class DigestChain:
    """Digests over the tokens a retention holds, first to last; see lease.proto. Immutable."""

    __slots__ = ("_digests", "_size", "algorithm", "chunk_tokens", "tokens")

    def __init__(
        self, algorithm: str, chunk_tokens: int, tokens: int, digests: tuple[bytes, ...]
    ) -> None:
        self.algorithm = sys.intern(algorithm)
        self.chunk_tokens = chunk_tokens
        self.tokens = tokens
        # Digests of one size are kept as one run of bytes: each by itself takes three times as
        # much memory.
        sizes = {len(digest) for digest in digests}
        self._size = sizes.pop() if len(sizes) == 1 else 0
        self._digests = b"".join(digests) if self._size else digests

    @property
    def digests(self) -> tuple[bytes, ...]:
        """One for each chunk."""
        if isinstance(self._digests, tuple):
            return self._digests
        starts = range(0, len(self._digests), self._size)
        return tuple(self._digests[start : start + self._size] for start in starts)

    @property
    def run(self) -> bytes:
        """All digests, one after the other."""
        return b"".join(self._digests) if isinstance(self._digests, tuple) else self._digests

    def __eq__(self, other: object) -> bool:
        """Whether it says the same."""
        return isinstance(other, DigestChain) and self._parts() == other._parts()

    def __hash__(self) -> int:
        """As of equal ones."""
        return hash(self._parts())

    def __repr__(self) -> str:
        """For logs."""
        return (
            f"DigestChain({self.algorithm!r}, {self.chunk_tokens}, {self.tokens}, "
            f"<{len(self.digests)} digests>)"
        )

    def _parts(self) -> tuple[object, ...]:
        return self.algorithm, self.chunk_tokens, self.tokens, self._size, self._digests


class Handle:
    """What a prefill engine needs to read a retention. Immutable.

    The parameters are JSON, opaque here, and given back as they came. They are kept packed: a
    plane holds one handle for every lease and reads few.
    """

    __slots__ = ("_packed", "_place", "digests")

    def __init__(self, kv_transfer_params: bytes, digests: DigestChain | None = None) -> None:
        self.digests = digests
        # The parameters repeat the digests.
        run = digests.run if digests is not None else b""
        rest, self._place = packing.without(kv_transfer_params, run)
        self._packed = packing.packed(rest)

    @property
    def kv_transfer_params(self) -> bytes:
        """One JSON object, UTF-8."""
        run = self.digests.run if self.digests is not None else b""
        return packing.joined(packing.unpacked(self._packed), run, self._place)

    def __eq__(self, other: object) -> bool:
        """Whether it says the same."""
        return isinstance(other, Handle) and self._parts() == other._parts()

    def __hash__(self) -> int:
        """As of equal ones."""
        return hash(self._parts())

    def __repr__(self) -> str:
        """For logs."""
        return f"Handle({self.kv_transfer_params!r}, {self.digests!r})"

    def _parts(self) -> tuple[object, ...]:
        return self._packed, self._place, self.digests


@dataclass(frozen=True, slots=True)
class Claim:
    """A holder's wish that a lease be renewed.

    `remaining` in seconds when it was read; 0 for a claim at another replica, which counts it.
    """

    holder: str
    remaining: float


@dataclass(frozen=True, slots=True)
class ClaimNote:
    """That holders at one replica claim a lease whose engine has another home.

    `holders` are those that claimed it when it was written; `final` says that somebody expects no
    further use, also where nobody claims it.
    """

    fencing_token: int
    holders: tuple[str, ...] = ()
    final: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of a session to have a retention stay.

    `lease_id` is the last part of the resource name `leases/{lease}`; `engine_id` that of
    `engines/{engine}`; `ttl` in seconds. As written in the store, a lease has no claims, and a
    `ttl` and `expire_time` only if they are fixed.
    """

    lease_id: str
    session_key: SessionKey
    engine_id: str
    engine_epoch: int
    retention_id: str
    fencing_token: int
    tokens: int
    blocks: int
    handle: Handle
    decision_id: str = ""
    message_digest: bytes = b""
    state: LeaseState = LeaseState.ACTIVE
    end_reason: EndReason | None = None
    reads: int = 0
    claims: tuple[Claim, ...] = ()
    ttl: float = 0.0
    create_time: dt.datetime | None = None
    expire_time: dt.datetime | None = None
    # Why it is RELEASING.
    release_reason: EndReason | None = None
    # Of leases without proof; see lease.proto.
    history_digest: bytes = b""

    @property
    def name(self) -> str:
        """Resource name."""
        return f"leases/{self.lease_id}"

    @property
    def engine(self) -> str:
        """Resource name of the engine that holds the blocks."""
        # Those who keep it share one text.
        return sys.intern(f"engines/{self.engine_id}")
