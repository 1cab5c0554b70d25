"""How every process lives: background loops, a graceful stop, ready lines."""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def until_stopped() -> AsyncGenerator[asyncio.Event]:
    """Gives an event that SIGTERM or SIGINT sets.

    A second signal ends the process at once, whatever it is in the middle of.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        say(f"{number.name}: stopping; once more stops at once")
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        stopped.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for each in signals:
        loop.add_signal_handler(each, stop, each)
    try:
        yield stopped
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
