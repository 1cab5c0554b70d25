"""Real kvplane processes on free ports of the loopback interface."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_KVPLANE = Path(sys.executable).parent / "kvplane"
_READY = re.compile(r"(gRPC|HTTP) ready on (?:http://)?(\S+)")


class Process:
    """One process; its standard error is read as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._arrived = asyncio.Condition()
        self.lines: list[str] = []

    async def follow(self) -> None:
        """Reads lines until the process ends."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            async with self._arrived:
                self.lines.append(line.decode().rstrip())
                self._arrived.notify_all()
        async with self._arrived:
            self._arrived.notify_all()

    async def address(self, kind: str) -> str:
        """Where it serves `gRPC` or `HTTP`, once it does."""

        def found() -> str | None:
            for line in self.lines:
                match = _READY.search(line)
                if match and match[1] == kind:
                    return match[2]
            return None

        await self._until(lambda: found() is not None)
        address = found()
        assert address is not None
        return address

    async def until_said(self, words: str) -> None:
        """Returns once a line with these words was written."""
        await self._until(lambda: any(words in line for line in self.lines))

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()

    async def ended(self) -> int:
        """The exit code, once it ended by itself."""
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    async def _until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(20), self._arrived:
            await self._arrived.wait_for(
                lambda: condition() or self._process.returncode is not None
            )
        assert condition(), "\n".join(self.lines)


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Process]:
    """A `kvplane` process that is ended with the block, whatever happens in it."""
    started = await asyncio.create_subprocess_exec(
        str(_KVPLANE), *arguments, stderr=asyncio.subprocess.PIPE
    )
    process = Process(started)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(process.follow())
        try:
            yield process
        finally:
            if started.returncode is None:
                started.kill()
            await started.wait()
