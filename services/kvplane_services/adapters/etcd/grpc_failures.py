"""What etcd and gRPC say when something fails, in one line that says what to do."""

import re

import grpc
import grpc.aio

from kvplane_services.adapters.etcd.backend import LeaseGone, NoRoom
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.errors import StoreRefused, Unavailable

_RETRY_AFTER = 1.0


class StaleToken(Exception):
    """etcd no longer takes the token that a call carried. Nothing was done."""


class AuthDisabled(Exception):
    """etcd asks nobody for a password."""


class HistoryGone(Exception):
    """etcd has not got the revision that was asked for: compacted, or never made by this etcd."""


class NotPermitted(StoreRefused):
    """etcd knows who is asking, and does not allow it."""


Failure = Unavailable | StoreRefused | LeaseGone | StaleToken | AuthDisabled | HistoryGone


def failure_of(error: grpc.aio.AioRpcError, *, address: str, config: EtcdConfig) -> Failure:
    """What a failed call means.

    Args:
        error: How it failed.
        address: Which node was called.
        config: What it was called with.

    """
    return explain(error.details() or "", code=error.code(), address=address, config=config)


def explain(
    said: str, *, address: str, config: EtcdConfig, code: grpc.StatusCode | None = None
) -> Failure:
    """As `failure_of`, from what was said; watches say some of it in their messages."""
    for mark, signal in _SIGNALS:
        if mark in said:
            return signal(said)
    if "user name is empty" in said and config.user:
        return StaleToken("etcd has begun to ask for a password")
    if "database space exceeded" in said:
        return NoRoom(
            f"etcd at {address} is full: compact and defragment it, then `etcdctl alarm disarm`",
            retry_after=_RETRY_AFTER,
        )
    if "permission denied" in said:
        return NotPermitted(
            f"etcd at {address} does not let {_who(config)} do that: grant reading and writing of "
            "everything under the store's prefix"
        )
    refusal = _refusal(said, code, config)
    if refusal is not None:
        return StoreRefused(f"etcd at {address} {refusal}")
    return Unavailable(f"etcd at {address} {_outage(said, code, config)}", retry_after=_RETRY_AFTER)


_SIGNALS: tuple[tuple[str, type[LeaseGone | StaleToken | AuthDisabled | HistoryGone]], ...] = (
    ("requested lease not found", LeaseGone),
    ("invalid auth token", StaleToken),
    ("revision of auth store is old", StaleToken),
    ("authentication is not enabled", AuthDisabled),
    ("required revision has been compacted", HistoryGone),
    ("required revision is a future revision", HistoryGone),
)


def _who(config: EtcdConfig) -> str:
    return f"user {config.user!r}" if config.user else "this process"


def _refusal(said: str, code: grpc.StatusCode | None, config: EtcdConfig) -> str | None:
    """Why repeating the call would be in vain; None if it might help."""
    for mark, refusal in _REFUSALS:
        if mark in said:
            return refusal.format(names=config.names)
    if "authentication failed, invalid user ID or password" in said:
        return _denial(config)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "is no etcd v3: check the address"
    return _distrust(said, config)


def _denial(config: EtcdConfig) -> str:
    names = config.names
    if not config.password:
        return f"does not take user {config.user!r} without a password: set {names.password}"
    return f"does not take user {config.user!r} with this password: check {names.identity}"


def _distrust(said: str, config: EtcdConfig) -> str | None:
    """What is wrong with a certificate, if that is what was said."""
    names = config.names
    untrusted = re.search(r"CERTIFICATE_VERIFY_FAILED: ([^:]*)", said)
    if untrusted:
        return (
            f"has a certificate that is not trusted ({untrusted[1].strip()}): give the certificate "
            f"of the authority that signed it ({names.authorities})"
        )
    if not any(mark in said for mark in _CERTIFICATE_ALERTS):
        return None
    if config.tls is not None and config.tls.certificate_chain is not None:
        return f"does not take our certificate: give one that its authority signed ({names.pair})"
    return f"wants a certificate from its clients: give one, and its key ({names.pair})"


# With the names of settings.
_REFUSALS = (
    ("user name is empty", "wants a user and a password: give both ({names.identity})"),
    (
        "Failed to create security handshaker",
        (
            "cannot be spoken to with these certificates: no PEM, or the key of another "
            "certificate ({names.authorities}, {names.pair})"
        ),
    ),
    (
        "Hostname Verification Check failed",
        "has a certificate for another name: use a name that is in the certificate",
    ),
    (
        "is not in peer certificate",
        "has a certificate for another name: use a name that is in the certificate",
    ),
    (
        "received message larger than max",
        "does not take a write that large: raise its --max-request-bytes",
    ),
    ("request is too large", "does not take a write that large: raise its --max-request-bytes"),
    ("too many operations", "does not take that many changes at once: raise its --max-txn-ops"),
    ("http1.x server", "is no etcd, or this is not its port for clients: check the address"),
)
# With TLS 1.3 servers refuse a client only after the handshake: what they say is lost in part.
_CERTIFICATE_ALERTS = (
    "TSI_DATA_CORRUPTED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "CERTIFICATE_REQUIRED",
)


def _outage(said: str, code: grpc.StatusCode | None, config: EtcdConfig) -> str:
    """What keeps etcd from answering."""
    for mark, outage in _OUTAGES:
        if mark in said:
            return outage
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or "deadline exceeded" in said:
        return "does not answer in time"
    if "failed to connect" in said and any(mark in said for mark in _HANGING_UP):
        return f"hangs up: {_why_it_hangs_up(said, config)}"
    return f"fails: {' '.join(said.split()) or 'it gives no reason'}"


# What is wrong cannot be told for certain: it hangs up without a word.
_HANGING_UP = ("Socket closed", "Connection reset", "Broken pipe")


def _why_it_hangs_up(said: str, config: EtcdConfig) -> str:
    names = config.names
    if config.tls is None:
        return f"it may want TLS: set {names.authorities}"
    if "Handshake" in said:
        return f"it may speak no TLS: leave out {names.authorities}, {names.pair}"
    if config.tls.certificate_chain is None:
        return f"it may want a certificate from its clients: set {names.pair}"
    return f"it may not take our certificate: check {names.pair}"


_OUTAGES = (
    ("Connection refused", "cannot be reached, nobody listens there: check the address"),
    ("errors resolving", "has a name that cannot be resolved: check the address"),
    ("DNS resolution failed", "has a name that cannot be resolved: check the address"),
    ("no leader", "has no leader: fewer than half of its nodes can reach each other"),
)
