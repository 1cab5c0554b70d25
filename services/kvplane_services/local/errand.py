"""A command that starts processes, needs them for a while, and leaves nothing running."""

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from rich.console import Console

from kvplane_services.clock import Clock

Progress = Callable[[str], None]
# Is given the folder for logs, and what tells how far it is; returns the exit code.
Work = Callable[[Path, Progress], Coroutine[Any, Any, int]]


async def run_errand(
    name: str,
    work: Work,
    *,
    known: tuple[type[Exception], ...],
    log_dir: Path | None,
    clock: Clock,
) -> int:
    """Does the work, and says on stderr how far it is and what ended it.

    Args:
        name: Of the command, as in `demo`.
        work: What to do. It is cancelled by SIGINT and SIGTERM, and stops what it started.
        known: Errors that are told in one line; others are bugs, and are raised.
        log_dir: Where to keep the logs; None for a temporary folder, which is kept on failure.
        clock: Times progress.

    Returns:
        The exit code: that of the work; 1 after a known error; 128 and the signal's number, as
        shells have it, after a signal.

    """
    err = Console(stderr=True, highlight=False)
    folder = log_dir or Path(tempfile.mkdtemp(prefix=f"kvplane-{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    started = clock.now()

    def say(line: str) -> None:
        err.print(f"[{clock.now() - started:6.1f} s] {line}", markup=False, soft_wrap=True)

    expected: tuple[type[Exception], ...] = (*known, ExceptionGroup)
    code = 1
    received: list[signal.Signals] = []
    running = asyncio.create_task(work(folder, say))

    def stop(number: signal.Signals) -> None:
        received.append(number)
        running.cancel()

    try:
        with _on_stop(stop):
            code = await running
    except asyncio.CancelledError:
        if not received:
            raise
        say(f"{received[0].name}: stopped everything that was started")
        code = 128 + received[0]
    except expected as error:
        cause = _cause(error, known)
        if cause is None:
            raise
        err.print(f"kvplane {name}: {cause}", markup=False, soft_wrap=True)
    finally:
        if code == 0 and log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"logs are in {folder}")
    return code


@contextlib.contextmanager
def _on_stop(react: Callable[[signal.Signals], None]) -> Generator[None]:
    """Calls `react` for SIGINT and SIGTERM while the block runs."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, react, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _cause(error: Exception, known: tuple[type[Exception], ...]) -> Exception | None:
    """What is to be told of a failure; None for a bug. A TaskGroup wraps what its tasks raise."""
    if isinstance(error, ExceptionGroup):
        found = [_cause(one, known) for one in error.exceptions]
        return None if None in found else found[0]
    return error if isinstance(error, known) else None
