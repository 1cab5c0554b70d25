"""What the book of sessions holds on to."""

import gc

from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.entry import Entry
from kvplane_services.session.history import reborn
from kvplane_services.session.record import SessionRecord
from kvplane_services.session.seconds import Seconds
from kvplane_services.session.wishes import Wishes
from tests.support.clock import FakeClock


async def test_forgotten_sessions_leave_nothing() -> None:
    """However many there were, and however long they would have been remembered."""
    clock, codec = FakeClock(), SessionCodec()
    book = SessionBook(codec=codec, wishes=Wishes(), clock=clock, config=SessionConfig())
    packed = codec.pack(reborn(SessionRecord(), ttl=604_800.0))
    for number in range(6_000):
        name = f"sessions/t:m::{number}"
        book.adopt(name, packed, number + 1)
        entry = book.find(name)
        assert entry is not None
        if number >= 10:
            book.forget(entry)
            book.adopt(name, None, number + 2)
        if number % 100 == 0:
            await clock.advance(1)
            assert list(book.due()) == []
    gc.collect()
    assert sum(isinstance(each, Entry) for each in gc.get_objects()) < 1500
    assert len(book) == 10
    await clock.advance(604_800)
    assert {entry.name for entry in book.due()} == {f"sessions/t:m::{n}" for n in range(10)}
    assert [book.oldest().name for _ in range(3)] == [  # type: ignore[union-attr]
        f"sessions/t:m::{n}" for n in range(3)
    ]


def test_things_come_by_their_seconds() -> None:
    """Earliest first, those of one second in the order in which they were put in."""
    seconds: Seconds[str] = Seconds()
    for second, thing in ((5, "c"), (3, "a"), (9, "e"), (3, "b"), (5, "d")):
        seconds.add(second, thing)

    assert seconds.take(until=2) is None
    assert [seconds.take(until=5) for _ in range(5)] == [
        (3, "a"),
        (3, "b"),
        (5, "c"),
        (5, "d"),
        None,
    ]
    seconds.add(9, "f")
    assert [seconds.take() for _ in range(3)] == [(9, "e"), (9, "f"), None]
    assert len(seconds) == 0
