"""Resource names: `engines/{engine}`, `leases/{lease}`, `sessions/{session}`."""

from typing import NamedTuple
from urllib.parse import quote, unquote


class SessionKey(NamedTuple):
    """What makes a conversation one conversation; see session.proto."""

    tenant: str
    model: str
    adapter: str
    session_id: str

    @property
    def name(self) -> str:
        """Resource name of the session of this key."""
        return session_name(*self)


def session_name(tenant: str, model: str, adapter: str, session_id: str) -> str:
    """The resource name of a session; each part is percent-encoded."""
    parts = (tenant, model, adapter, session_id)
    return "sessions/" + ":".join(quote(part, safe="") for part in parts)


def parse_session_name(name: str) -> SessionKey:
    """The key in a session's resource name.

    Raises:
        ValueError: `name` is not the resource name of a session.

    """
    prefix, _, rest = name.partition("/")
    parts = [unquote(part) for part in rest.split(":")]
    if prefix != "sessions" or len(parts) != len(SessionKey._fields):
        raise ValueError(
            f"{name!r} is not a session: expected "
            "sessions/{tenant}:{model}:{adapter}:{session_id} with percent-encoded parts"
        )
    return SessionKey(*parts)


def engine_name(engine: str) -> str:
    """The resource name of an engine, given as a name or as its id alone."""
    return _qualified("engines", engine)


def lease_name(lease: str) -> str:
    """The resource name of a lease, given as a name or as its id alone."""
    return _qualified("leases", lease)


def _qualified(collection: str, name: str) -> str:
    return name if name.startswith(f"{collection}/") else f"{collection}/{name}"
