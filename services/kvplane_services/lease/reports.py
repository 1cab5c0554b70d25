"""What engines report of their retentions, and what they are told in return. Pure data."""

from dataclasses import dataclass

from kvplane_services.lease.model import EndReason, Handle
from kvplane_services.session.model import SessionKey


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """A retention that an engine holds; see engine.proto for each field.

    `remaining` in seconds; `lease` is a full resource name, empty if the engine knows none.
    """

    retention_id: str
    session_key: SessionKey
    tokens: int
    blocks: int
    handle: Handle
    remaining: float = 0.0
    decision_id: str = ""
    message_digest: bytes = b""
    lease: str = ""
    fencing_token: int = 0
    reads: int = 0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One heartbeat's news. `full`: `retentions` is everything that the engine holds."""

    retentions: tuple[RetentionReport, ...] = ()
    ended: tuple[tuple[str, EndReason], ...] = ()
    reads: tuple[tuple[str, int], ...] = ()
    full: bool = False


@dataclass(frozen=True, slots=True)
class Directive:
    """What an engine is to do with a retention: hold it `renew` seconds more, or `release` it.

    `worth`: what keeping it is worth while it is renewed; see `worth_per_block`.
    """

    retention_id: str
    lease: str
    fencing_token: int
    renew: float = 0.0
    release: EndReason | None = None
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """What the manager answers to a report; `full_report_needed`: it has never seen a full one."""

    directives: tuple[Directive, ...] = ()
    full_report_needed: bool = False
