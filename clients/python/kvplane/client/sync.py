"""The plane for scripts that do not run an event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from kvplane.client.plane import Plane

T = TypeVar("T")


class SyncPlane:
    """A `Plane` whose event loop runs in a thread of its own. Use as a context manager.

        with SyncPlane("127.0.0.1:7000") as plane:
            engine = plane.run(plane.engines.get("decode-0"))
            for lease in plane.each(plane.leases.list()):
                ...

    Args:
        target: Address of all services, `host:port`; several, separated by commas, for a plane
            of several replicas.
        options: The keyword arguments of `Plane`.

    Raises:
        ValueError: An address is not `host:port`.

    """

    def __init__(self, target: str = "127.0.0.1:7000", **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="kvplane-client", daemon=True
        )
        self._thread.start()
        try:
            self._plane = self.run(_open(target, options))
        except BaseException:
            self._stop()
            raise
        self.engines = self._plane.engines
        self.leases = self._plane.leases
        self.sessions = self._plane.sessions
        self.router = self._plane.router

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for one call and returns its result, or raises its error."""
        pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return pending.result()
        except BaseException:
            # Ctrl-C arrives in this thread; the call must not go on in the other.
            pending.cancel()
            raise

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of a list or a watch, one by one."""

        async def following() -> T:
            return await anext(items)

        try:
            while True:
                try:
                    yield self.run(following())
                except StopAsyncIteration:
                    return
        finally:
            if isinstance(items, AsyncGenerator):
                self.run(_finish(items))

    def close(self) -> None:
        """Closes the connections and ends the thread. Idempotent."""
        if self._thread.is_alive():
            self.run(self._plane.aclose())
            self._stop()

    def __enter__(self) -> Self:
        """The plane itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _open(target: str, options: dict[str, Any]) -> Plane:
    return Plane(target, **options)


async def _finish(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
