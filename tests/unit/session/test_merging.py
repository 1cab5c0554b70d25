"""Whatever replicas hear and write in whatever order, one record comes out of it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.history import ended as ended_session
from kvplane_services.session.model import SessionState
from kvplane_services.session.record import PackedRecord, SessionRecord
from kvplane_services.session.wishes import Wishes
from tests.support.clock import FakeClock
from tests.support.state_values import key_of
from tests.unit.session.remote_leases import lease

NAME = key_of().name


class Shelf:
    """A store of one record, as compare-and-set makes it."""

    def __init__(self) -> None:
        self.packed: PackedRecord | None = None
        self.revision = 0

    def put(self, packed: PackedRecord, expected: int) -> bool:
        if expected != self.revision:
            return False
        self.packed, self.revision = packed, self.revision + 1
        return True


class Desk:
    """A replica's book, whose writes happen when the test says so."""

    def __init__(self, shelf: Shelf) -> None:
        self.codec = SessionCodec()
        self.shelf = shelf
        self.book = SessionBook(
            codec=self.codec, wishes=Wishes(), clock=FakeClock(), config=SessionConfig()
        )

    def record(self) -> SessionRecord | None:
        entry = self.book.find(NAME)
        return None if entry is None else self.book.record_of(entry)

    def read(self) -> None:
        if self.shelf.packed is not None:
            self.book.adopt(NAME, self.shelf.packed, self.shelf.revision)

    def save(self) -> None:
        entry = self.book.find(NAME)
        if entry is None or entry.unsaved is None:
            return
        record = entry.unsaved.record
        packed = self.codec.pack(record)
        if self.shelf.put(packed, entry.revision):
            self.book.saved(entry, packed, self.shelf.revision, record)
        else:
            self.read()

    def end(self) -> None:
        """What EndSession does, once it got through."""
        self.read()
        record = self.record()
        if record is None:
            return
        packed = self.codec.pack(ended_session(record))
        assert self.shelf.put(packed, self.shelf.revision)
        self.book.adopt(NAME, packed, self.shelf.revision)


def told(leases: int) -> list[Lease]:
    """What a feed tells of a conversation: each lease is superseded by the next one."""
    news: list[Lease] = []
    for token in range(1, leases + 1):
        news.append(lease(token))
        if token > 1:
            before = lease(token - 1, state=LeaseState.RELEASING)
            news.append(before)
            news.append(replace(before, state=LeaseState.ENDED, end_reason=EndReason.SUPERSEDED))
    return news


def coalesced(news: list[Lease], keep: list[bool]) -> list[Lease]:
    """The same, where some news were overtaken by later ones of the same lease."""
    last = {each.lease_id: index for index, each in enumerate(news)}
    return [
        each
        for index, each in enumerate(news)
        if last[each.lease_id] == index or keep[index % len(keep)]
    ]


Steps = list[tuple[int, str]]


def play(desks: list[Desk], feeds: list[list[Lease]], steps: Steps) -> None:
    """Has replicas hear, save and read in this order."""
    for replica, step in steps:
        desk, feed = desks[replica], feeds[replica]
        if step == "hear" and feed:
            desk.book.take(NAME, feed.pop(0))
        elif step == "save":
            desk.save()
        elif step == "read":
            desk.read()


_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["hear", "hear", "save", "read"])), max_size=60
)
_KEEP = st.lists(st.booleans(), min_size=1, max_size=12)


@given(leases=st.integers(1, 5), keeps=st.tuples(_KEEP, _KEEP, _KEEP), steps=_STEPS)
def test_one_history_comes_of_all(
    leases: int, keeps: tuple[list[bool], list[bool], list[bool]], steps: Steps
) -> None:
    """Each turn once, in order, with its end; the session has the newest lease."""
    shelf = Shelf()
    desks = [Desk(shelf) for _ in keeps]
    feeds = [coalesced(told(leases), keep) for keep in keeps]
    play(desks, feeds, steps)
    for desk, feed in zip(desks, feeds, strict=True):
        for news in feed:
            desk.book.take(NAME, news)
    for desk in desks * 3:
        desk.save()
        desk.read()

    for desk in desks:
        record = desk.record()
        assert record is not None
        assert [turn.token for turn in record.turns] == list(range(1, leases + 1))
        assert [turn.end_reason for turn in record.turns] == ["SUPERSEDED"] * (leases - 1) + [""]
        assert (record.turn_count, record.token, record.lease_id) == (leases, leases, f"l{leases}")
        assert record.state is SessionState.RETAINED
        assert not desk.book.unsaved()
        assert list(desk.book.leases()) == [f"l{leases}"]


@given(steps=_STEPS, end_at=st.integers(0, 60), ends=st.integers(0, 2))
def test_an_end_is_not_undone_by_what_comes_late(steps: Steps, end_at: int, ends: int) -> None:
    """A replica that hears of the ended turns later, or of other leases on them, opens nothing."""
    shelf = Shelf()
    desks = [Desk(shelf) for _ in range(3)]
    first = told(2)
    again = [
        replace(first[-1], state=LeaseState.ENDED, end_reason=EndReason.FENCED),
        lease(3, lease_id="l3", retention_id="r2", engine_epoch=2),
    ]
    feeds = [list(first) for _ in desks]
    for news in first:
        desks[ends].book.take(NAME, news)
    feeds[ends].clear()
    play(desks, feeds, steps[:end_at])
    desks[ends].end()
    play(desks, feeds, steps[end_at:])
    over: list[bool] = []
    for desk, feed in zip(desks, feeds, strict=True):
        for news in feed:
            desk.book.take(NAME, news)
        desk.read()
        over.extend(desk.book.take(NAME, news).over for news in again)
    for desk in desks * 3:
        desk.save()
        desk.read()

    assert over == [False, True] * 3
    for desk in desks:
        record = desk.record()
        assert record is not None
        assert (record.state, record.lease_id, record.turn_count) == (SessionState.ENDED, "", 2)
        assert not desk.book.unsaved()
