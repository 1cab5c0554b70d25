import asyncio
import threading

import pytest

from kvplane_services.gateway.body_work import BodyWork

SMALL, LARGE = 64 * 1024, 64 * 1024 + 1


async def test_only_large_bodies_leave_the_loop() -> None:
    """Work on a small body is done at once; on a large one, in a thread of few."""
    async with BodyWork() as work:
        here = await work.run(threading.get_ident, size=SMALL)
        there = {await work.run(threading.get_ident, size=LARGE) for _ in range(10)}

    assert here == threading.get_ident()
    assert here not in there
    assert 1 <= len(there) <= 2


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_errors_come_back(size: int) -> None:
    """What the work raises is raised to who waits for it."""
    async with BodyWork() as work:
        with pytest.raises(ZeroDivisionError):
            await work.run(lambda: 1 // 0, size=size)


async def test_work_that_nobody_waits_for_is_not_begun() -> None:
    """Clients that leave while others are served cost no work."""
    free = threading.Event()
    begun: list[int] = []
    async with BodyWork() as work:
        busy = [asyncio.create_task(work.run(lambda: free.wait(5), size=LARGE)) for _ in range(2)]
        left = asyncio.create_task(work.run(lambda: begun.append(1), size=LARGE))
        await asyncio.wait([left], timeout=0.01)
        left.cancel()
        await asyncio.wait([left])
        free.set()
        assert await asyncio.gather(*busy) == [True, True]
        await work.run(lambda: begun.append(2), size=LARGE)

    assert begun == [2]


async def test_work_needs_threads() -> None:
    """Used outside of its context it says so."""
    with pytest.raises(RuntimeError, match="outside of its context"):
        await BodyWork().run(threading.get_ident, size=LARGE)
