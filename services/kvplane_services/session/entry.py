"""What a replica holds of each session."""

from dataclasses import dataclass, field

from kvplane_services.session.history import News
from kvplane_services.session.record import PackedRecord, SessionRecord


@dataclass(slots=True)
class Unsaved:
    """What the store does not have yet of a session.

    Attributes:
        since: When it came, on the monotonic clock.
        record: The session with it.
        news: The latest of each lease that is not in the store's record.
        lost: What the store had before it lost it.

    """

    since: float
    record: SessionRecord
    news: dict[str, News] = field(default_factory=dict)
    lost: SessionRecord | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """A session, in few bytes: there may be a million.

    `packed` and `revision` are the store's, None and 0 while it has nothing. `used_at` is the
    monotonic time of the last change; `due` and `aged` are the seconds under which the entry
    waits to be forgotten, and to make room, 0 for none.
    """

    name: str
    packed: PackedRecord | None = None
    revision: int = 0
    unsaved: Unsaved | None = None
    lease_id: str = ""
    engine_id: str = ""
    deleted: bool = False
    used_at: float = 0.0
    due: int = 0
    aged: int = 0
