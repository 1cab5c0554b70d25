"""How every process lives: background loops, a graceful stop, ready lines."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kvplane_services.clock import Clock


class Stop:
    """A stop of the process that a signal asks for.

    Attributes:
        asked: It was asked for: say so to whoever sends requests here, and serve on.
        due: Take nothing new from now on, finish what runs, and end.

    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.due = asyncio.Event()


@asynccontextmanager
async def until_stopped(*, delay: float = 0.0, clock: Clock) -> AsyncGenerator[Stop]:
    """Gives a stop that SIGTERM or SIGINT asks for.

    A second signal ends the process at once, whatever it is in the middle of.

    Args:
        delay: Seconds from SIGTERM until the stop is due; SIGINT is for people, who wait for none.
        clock: Times the delay.

    """
    loop = asyncio.get_running_loop()
    stop = Stop()
    waits = 0.0

    def ask(number: signal.Signals) -> None:
        nonlocal waits
        waits = delay if number is signal.SIGTERM else 0.0
        when = f" in {waits:g} s" if waits else ""
        say(f"{number.name}: stopping{when}; once more stops at once")
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stop.asked.set()

    async def fall_due() -> None:
        await stop.asked.wait()
        await clock.sleep(waits)
        stop.due.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for each in signals:
        loop.add_signal_handler(each, ask, each)
    try:
        async with background(fall_due()):
            yield stop
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


@asynccontextmanager
async def background(*loops: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Runs loops beside the block and cancels them at its end.

    A loop that fails ends the block: nothing goes on with a part of it dead.
    """
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def say(line: str) -> None:
    """Tells the operator, whatever the log level is."""
    print(f"kvplane: {line}", file=sys.stderr, flush=True)  # noqa: T201 - for whoever started it
