"""Processes that are started here, watched, and stopped with all their children."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvplane_services.clock import Clock

_POLL = 0.02
_ANSWER_POLL = 0.1
_AFTER_KILL = 1.0

# Becomes the program, after it has asked the kernel (Linux) to be told when the thread that started
# it ends: should we be killed, what we started ends too.
_TIED = """
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
if prctl := getattr(ctypes.CDLL(None), "prctl", None):
    prctl(1, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit("whoever started this is gone")
os.execvp(command[0], command)
"""


class StartError(RuntimeError):
    """A process could not be started or did not get ready; the message ends with its log's tail."""


class ManagedProcess:
    """One process in a session of its own, so that its children can be stopped with it.

    Its output goes to `log`. Nothing is inherited but `environment`. On Linux it is asked to end
    (SIGTERM) when the thread that made it ends, however that happens.

    Args:
        name: For messages.
        command: The program and its arguments.
        environment: All of its environment.
        log: Where its output goes; overwritten.
        clock: Time.

    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        clock: Clock,
    ) -> None:
        self.name = name
        self.log = log
        self._clock = clock
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise StartError(f"{name} could not be started: there is no program {command[0]}")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id; also that of its process group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    async def until_answers(
        self,
        port: int,
        path: str,
        *,
        patience: float,
        meanwhile: Callable[[float], None] | None = None,
    ) -> float:
        """Waits until GET `path` is answered with 200 on a loopback port.

        Args:
            port: Where it is to serve.
            path: What it answers once it does.
            patience: Seconds until it must.
            meanwhile: Called with the seconds waited so far, time and again.

        Returns:
            The seconds that it took.

        Raises:
            StartError: It ended, or did not answer in time.

        """
        started = self._clock.now()
        while not await answers(port, path):
            waited = self._clock.now() - started
            if (code := self.exit_code) is not None:
                raise self._start_error(f"ended with exit code {code} before it served")
            if waited > patience:
                raise self._start_error(f"was not ready within {patience:.0f} s")
            if meanwhile is not None:
                meanwhile(waited)
            await self._clock.sleep(_ANSWER_POLL)
        return self._clock.now() - started

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to it and all its children; does nothing if none is left."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        """Ends it and all its children at once."""
        self.send(signal.SIGKILL)
        self._process.wait()

    async def stop(self, *, patience: float = 5.0) -> None:
        """Asks it to end; after `patience` seconds ends what is left of it and its children."""
        self.send(signal.SIGTERM)
        await self._until_gone(patience)
        self.kill()
        # The kernel takes a moment to end children that we cannot wait for.
        await self._until_gone(_AFTER_KILL)

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _start_error(self, what: str) -> StartError:
        return StartError(
            f"{self.name} {what}; its log is {self.log} and ends with:\n{self.tail()}"
        )

    async def _until_gone(self, seconds: float) -> None:
        deadline = self._clock.now() + seconds
        while self._group_exists() and self._clock.now() < deadline:
            await self._clock.sleep(_POLL)

    def _group_exists(self) -> bool:
        self._process.poll()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on, all different.

    Not promised: that they stay free until they are used.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


async def answers(port: int, path: str, *, patience: float = 2.0) -> bool:
    """Whether an HTTP server on a loopback port answers GET `path` with 200, within seconds."""
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
