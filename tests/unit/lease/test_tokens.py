import asyncio

from kvplane_services.lease.tokens import Drawn, TokenIssuer
from tests.support.clock import FakeClock


class Numbers:
    """A sequence that answers when a test lets it."""

    def __init__(self) -> None:
        self.last = 100
        self.answers = asyncio.Event()
        self.answers.set()

    async def next(self, count: int = 1) -> int:
        first = self.last + 1
        self.last += count
        await self.answers.wait()
        return first


async def test_tokens_are_drawn_together() -> None:
    """They are consecutive, and nobody else gets them."""
    issuer = TokenIssuer(tokens=Numbers())

    first, second = await issuer.draw(5), await issuer.draw(1)

    assert (first.first, second.first) == (101, 106)
    assert issuer.highest == 106


async def test_a_drawn_token_is_larger_than_every_one_known_before() -> None:
    """Also where one came from a clock that ran ahead, and several draw at once."""
    numbers = Numbers()
    issuer = TokenIssuer(tokens=numbers)
    issuer.note(5000)
    numbers.answers.clear()
    drawing = asyncio.gather(issuer.draw(3), issuer.draw(2))
    await FakeClock().advance(0)
    numbers.answers.set()

    drawn = await drawing

    assert [one.first for one in drawn] == [5001, 5004]
    assert [one.by_sequence for one in drawn] == [101, 104]


async def test_what_becomes_known_meanwhile_changes_nothing() -> None:
    """It was drawn by another replica at the same time; tokens stay those of the sequence."""
    numbers = Numbers()
    issuer = TokenIssuer(tokens=numbers)
    numbers.answers.clear()
    drawing = asyncio.ensure_future(issuer.draw(2))
    await FakeClock().advance(0)
    issuer.note(110)
    numbers.answers.set()

    assert (await drawing).first == 101


def test_which_tokens_may_be_adopted() -> None:
    """Those that a plane can have granted: positive, and not far ahead of its own."""
    drawn = Drawn(first=10, by_sequence=10)

    assert drawn.may_adopt(1)
    assert drawn.may_adopt(10 + (1 << 42))
    assert not drawn.may_adopt(0)
    assert not drawn.may_adopt(-1)
    assert not drawn.may_adopt(11 + (1 << 42))
