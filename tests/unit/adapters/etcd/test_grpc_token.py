import asyncio

import pytest

from kvplane_services.adapters.etcd.grpc_token import Token
from kvplane_services.errors import Unavailable
from tests.support.clock import FakeClock

LEADER = ("hasleader", "true")


class Authority:
    """Gives tokens when told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def authenticate(self) -> str:
        """Waits for the answer."""
        self.asked += 1
        return await self.answer

    def anew(self) -> None:
        """The next one who asks waits again."""
        self.answer = asyncio.get_running_loop().create_future()


@pytest.fixture
async def authority() -> Authority:
    return Authority()


@pytest.fixture
def token(authority: Authority) -> Token:
    return Token(authority.authenticate)


async def waiting(token: Token, count: int) -> "list[asyncio.Task[tuple[tuple[str, str], ...]]]":
    """Calls that wait for a token."""
    tasks = [asyncio.create_task(token.metadata()) for _ in range(count)]
    await FakeClock().sleep(0)
    return tasks


async def test_without_a_user_there_is_no_token() -> None:
    """Calls of nobody in particular carry none, and a refusal cannot be helped."""
    token = Token(None)

    assert await token.metadata() == (LEADER,)
    assert not token.expire((LEADER,))


async def test_one_token_for_all(token: Token, authority: Authority) -> None:
    """However many calls need a token, it is asked for once, and kept."""
    calls = await waiting(token, 3)
    authority.answer.set_result("t1")

    assert await asyncio.gather(*calls) == [(LEADER, ("token", "t1"))] * 3
    assert await token.metadata() == (LEADER, ("token", "t1"))
    assert authority.asked == 1


async def test_failure_is_shared_and_not_kept(token: Token, authority: Authority) -> None:
    """Calls that wait fail together; the next one asks again."""
    calls = await waiting(token, 3)
    authority.answer.set_exception(Unavailable("away", retry_after=1))

    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(failure) for failure in failures] == [Unavailable] * 3
    assert authority.asked == 1

    authority.anew()
    authority.answer.set_result("t1")
    assert await token.metadata() == (LEADER, ("token", "t1"))


async def test_who_gives_up_leaves_the_others_waiting(token: Token, authority: Authority) -> None:
    """A call that is cancelled while it waits takes no token from the others."""
    first, second = await waiting(token, 2)
    first.cancel()
    await FakeClock().sleep(0)
    authority.answer.set_result("t1")

    assert await second == (LEADER, ("token", "t1"))
    assert first.cancelled()


async def test_expired_token_is_asked_for_once(token: Token, authority: Authority) -> None:
    """Of many calls that carried a stale token the first forgets it, and only that one."""
    authority.answer.set_result("t1")
    stale = await token.metadata()
    assert token.expire(stale)
    authority.anew()
    authority.answer.set_result("t2")
    fresh = await token.metadata()

    assert token.expire(stale)

    assert await token.metadata() == fresh == (LEADER, ("token", "t2"))
    assert authority.asked == 2


async def test_etcd_that_begins_to_ask(token: Token, authority: Authority) -> None:
    """An empty token, from an etcd that asked nobody, expires like others."""
    authority.answer.set_result("")
    none = await token.metadata()
    assert none == (LEADER,)
    authority.anew()
    authority.answer.set_result("t1")

    assert token.expire(none)

    assert await token.metadata() == (LEADER, ("token", "t1"))
