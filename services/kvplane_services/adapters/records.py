"""How each table's values are written down.

What a store holds is read by replicas of the version before and after this one, so these
messages change by the rules of the contracts only.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.adapters.session_records import packed_record
from kvplane_services.engine.model import Engine, Home
from kvplane_services.engine.ports import HOMES_TABLE
from kvplane_services.engine.wire import engine_from_wire, engine_to_wire
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.model import ClaimNote, Lease
from kvplane_services.lease.wire import lease_from_wire, lease_to_wire
from kvplane_services.records.v1 import claim_pb2, home_pb2, member_pb2
from kvplane_services.session.record import PackedRecord
from kvplane_services.store.members import Member
from kvplane_services.store.model import TableSpec

M = TypeVar("M", bound=Message)
V = TypeVar("V")


def _encoder(to_wire: Callable[[V], Message]) -> Callable[[V], bytes]:
    # Deterministic: maps have no order of their own.
    return lambda value: to_wire(value).SerializeToString(deterministic=True)


def _decoder(message: type[M], from_wire: Callable[[M], V]) -> Callable[[bytes], V]:
    def decode(data: bytes) -> V:
        try:
            return from_wire(message.FromString(data))
        except (DecodeError, InvalidRequest) as error:
            raise ValueError(f"not a {message.DESCRIPTOR.full_name}: {error}") from error

    return decode


def _home_to_wire(home: Home) -> home_pb2.Home:
    return home_pb2.Home(
        replica=home.replica,
        anchor=home.anchor,
        anchor_ttl=home.anchor_ttl,
        engine_ttl=home.engine_ttl,
    )


def _home_from_wire(message: home_pb2.Home) -> Home:
    return Home(message.replica, message.anchor, message.anchor_ttl, message.engine_ttl)


def _claim_to_wire(note: ClaimNote) -> claim_pb2.ClaimNote:
    return claim_pb2.ClaimNote(
        fencing_token=note.fencing_token, holders=note.holders, final=note.final
    )


def _claim_from_wire(message: claim_pb2.ClaimNote) -> ClaimNote:
    return ClaimNote(message.fencing_token, tuple(message.holders), message.final)


def _member_to_wire(member: Member) -> member_pb2.Member:
    return member_pb2.Member(roles=member.roles)


def _member_from_wire(message: member_pb2.Member) -> Member:
    return Member(tuple(message.roles))


CLAIMS: TableSpec[ClaimNote] = TableSpec(
    "claims", ClaimNote, _encoder(_claim_to_wire), _decoder(claim_pb2.ClaimNote, _claim_from_wire)
)
ENGINES: TableSpec[Engine] = TableSpec(
    "engines", Engine, _encoder(engine_to_wire), _decoder(engine_pb2.Engine, engine_from_wire)
)
HOMES: TableSpec[Home] = TableSpec(
    HOMES_TABLE, Home, _encoder(_home_to_wire), _decoder(home_pb2.Home, _home_from_wire)
)
LEASES: TableSpec[Lease] = TableSpec(
    "leases", Lease, _encoder(lease_to_wire), _decoder(lease_pb2.Lease, lease_from_wire)
)
MEMBERS: TableSpec[Member] = TableSpec(
    "members", Member, _encoder(_member_to_wire), _decoder(member_pb2.Member, _member_from_wire)
)
SESSIONS: TableSpec[PackedRecord] = TableSpec(
    "sessions", cast("type[PackedRecord]", bytes), bytes, packed_record
)
