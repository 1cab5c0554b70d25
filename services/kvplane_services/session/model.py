"""What a session is. Pure data; see session.proto for the meaning of each field."""

import datetime as dt
import enum
import functools
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from kvplane_services.errors import InvalidRequest

# The longest each part of a key may be, in bytes of UTF-8.
_MAX_BYTES = {"tenant": 256, "model": 512, "adapter": 512, "session_id": 512}

# What percent-encoding leaves as it is.
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch


@functools.lru_cache(maxsize=4096)
def _start_of_name(tenant: str, model: str, adapter: str) -> str:
    return "sessions/" + "".join(f"{quote(part, safe='')}:" for part in (tenant, model, adapter))


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What makes a conversation one conversation."""

    tenant: str
    model: str
    adapter: str
    session_id: str

    @property
    def name(self) -> str:
        """Resource name; each part is percent-encoded, so no id can reach another key."""
        start = _start_of_name(self.tenant, self.model, self.adapter)
        session_id = self.session_id
        return start + (session_id if _PLAIN(session_id) else quote(session_id, safe=""))

    @classmethod
    def parse(cls, name: str) -> "SessionKey":
        """The key of a resource name.

        Raises:
            InvalidRequest: `name` is not the name of a session.

        """
        prefix, _, rest = name.partition("/")
        parts = [unquote(part) for part in rest.split(":")]
        if prefix != "sessions" or len(parts) != len(_MAX_BYTES):
            raise InvalidRequest(
                f"{name!r} is not a session: expected "
                "sessions/{tenant}:{model}:{adapter}:{session_id} with percent-encoded parts",
                field="name",
            )
        key = cls(*parts)
        key.validate()
        return key

    def validate(self) -> None:
        """Checks presence and length of each part.

        Raises:
            InvalidRequest: A part is missing or too long.

        """
        for part, limit in _MAX_BYTES.items():
            value: str = getattr(self, part)
            if not value and part != "adapter":
                raise InvalidRequest(f"session_key.{part} is required", field=f"session_key.{part}")
            if len(value.encode()) > limit:
                raise InvalidRequest(
                    f"session_key.{part} is longer than {limit} bytes",
                    field=f"session_key.{part}",
                )


class SessionState(enum.Enum):
    """The lifecycle of a session."""

    IDLE = "idle"
    RETAINED = "retained"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn that left a retention. `engine` and `lease` are full resource names."""

    decision_id: str
    lease: str
    engine: str
    tokens: int
    finish_time: dt.datetime | None
    end_reason: str = ""


@dataclass(frozen=True, slots=True)
class SessionHints:
    """What a client said of a session's future; `keep_for` in seconds."""

    keep_for: float = 0.0
    final_turn: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation whose KV cache is worth finding again.

    `lease` and `engine` are full resource names, empty without a live lease.
    """

    key: SessionKey
    state: SessionState = SessionState.IDLE
    lease: str = ""
    engine: str = ""
    turns: tuple[Turn, ...] = ()
    turn_count: int = 0
    hints: SessionHints = SessionHints()
    create_time: dt.datetime | None = None
    update_time: dt.datetime | None = None
    expire_time: dt.datetime | None = None
    etag: str = ""

    @property
    def name(self) -> str:
        """Resource name."""
        return self.key.name
