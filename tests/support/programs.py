"""Our own programs as processes, for tests."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kvplane_services.clock import SystemClock

KVPLANE = Path(sys.executable).parent / "kvplane"
_POLL = 0.02


def wait_until(found: Callable[[], bool], *, seconds: float, what: str) -> float:
    """Waits for something to be so; returns how long it took, in seconds."""
    clock = SystemClock()
    started = clock.now()
    while not found():
        if clock.now() - started > seconds:
            raise AssertionError(f"{what}: not within {seconds} s")
        pause(_POLL)
    return clock.now() - started


def pause(seconds: float) -> None:
    """Really waits, as only tests of processes may."""
    threading.Event().wait(seconds)


class Program:
    """`kvplane ARGUMENTS`, running; its output goes to `log`."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self.log = log
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("KVPLANE_")}
        # No balancer has to notice that it stops; tests of that name a delay.
        inherited["KVPLANE_STOP__DELAY"] = "0"
        with log.open("ab") as output:
            self._start = output.tell()
            self._process = subprocess.Popen(
                [str(KVPLANE), *arguments],
                env=inherited,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self.log.read_bytes()[self._start :].decode(errors="replace")

    def wait_for(self, pattern: str, *, seconds: float = 20) -> str:
        """Waits until it says something; returns the pattern's first group."""

        def said() -> bool:
            code = self.exit_code
            found = re.search(pattern, self.output) is not None
            assert found or code is None, f"it ended with {code}:\n{self.output}"
            return found

        wait_until(said, seconds=seconds, what=f"{pattern!r} in {self.log}")
        match = re.search(pattern, self.output)
        assert match is not None
        return match[1]

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal, if it runs."""
        if self.exit_code is None:
            self._process.send_signal(number)

    def wait(self, *, seconds: float = 10) -> int:
        """Waits until it ended; returns its exit code. Raises subprocess.TimeoutExpired."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Ends it at once."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def stop(self, *, seconds: float = 10) -> int:
        """Asks it to end, waits, and returns its exit code; kills it if it does not listen."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(seconds=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
