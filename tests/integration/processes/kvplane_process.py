"""Real kvplane processes on free ports of the loopback interface, waited for without blocking."""

import asyncio
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.programs import Program


class Process:
    """A program, for tests that go on while they wait for it."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @property
    def lines(self) -> list[str]:
        """What it has said so far."""
        return self._program.output.splitlines()

    async def address(self, kind: str) -> str:
        """Where it serves `gRPC` or `HTTP`, once it does."""
        return await self._until(rf"{kind} ready on (?:http://)?(\S+)\n")

    async def until_said(self, words: str) -> None:
        """Returns once it has said these words."""
        await self._until(f"({re.escape(words)})")

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        self.signal(number)
        return await self.ended()

    async def ended(self) -> int:
        """The exit code, once it ended."""
        return await asyncio.to_thread(self._program.wait, seconds=20)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it runs."""
        self._program.send(number)

    async def _until(self, pattern: str) -> str:
        return await asyncio.to_thread(self._program.wait_for, pattern)


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Process]:
    """A `kvplane` process that is ended with the block, whatever happens in it."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(*arguments, log=Path(folder) / "log")
        try:
            yield Process(program)
        finally:
            program.kill()
