"""How a process is asked to stop. Signals are real, time is not."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from kvplane_services.main.process import until_stopped
from tests.support.clock import FakeClock


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The test run's own handlers, put back: a stop leaves those of the system."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def turned(event: asyncio.Event) -> None:
    """Returns once the event is set; signals come through the loop."""
    async with asyncio.timeout(5):
        await event.wait()


async def test_stop_is_due_a_while_after_it_was_asked_for() -> None:
    """SIGTERM asks at once, for others to be told; the stop is due after the delay."""
    clock = FakeClock()
    async with until_stopped(delay=5.0, clock=clock) as stop:
        assert not stop.asked.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await turned(stop.asked)
        await clock.wait_for_sleepers()
        await clock.advance(4.9)
        assert not stop.due.is_set()
        await clock.advance(0.2)
        assert stop.due.is_set()


@pytest.mark.parametrize(
    ("number", "delay"), [(signal.SIGINT, 5.0), (signal.SIGTERM, 0.0), (signal.SIGINT, 0.0)]
)
async def test_nobody_waits_where_nobody_has_to_be_told(
    number: signal.Signals, delay: float
) -> None:
    """An interrupt from a terminal is due at once; so is every stop without a delay."""
    async with until_stopped(delay=delay, clock=FakeClock()) as stop:
        os.kill(os.getpid(), number)
        await turned(stop.due)
        assert stop.asked.is_set()


async def test_block_that_ends_by_itself_leaves_no_handler() -> None:
    """A process that ends without a signal takes its handlers back, and waits for nothing."""
    before = signal.getsignal(signal.SIGTERM)
    async with until_stopped(delay=5.0, clock=FakeClock()):
        pass
    assert signal.getsignal(signal.SIGTERM) == before
