"""The link to the plane: a thread of its own, so that the step loop never waits for it.

The thread is a daemon with its own event loop. gRPC, and all that imports it, is imported
inside the thread: vLLM may fork before, and must not after.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvplane.client.retention import Directive, EngineLoad, Report
from kvplane_connector.clock import EngineClock
from kvplane_connector.engine_facts import EngineFacts
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.retentions import RetentionLedger

if TYPE_CHECKING:
    from kvplane.api.engine.v1 import engine_pb2
    from kvplane.client import EngineLink, Registration

_log = logging.getLogger(__name__)

# vLLM gives its parts a moment to stop; the plane may be away.
_STOP_SECONDS = 3.0


class LinkSource:
    """Implements `kvplane.client.retention.RetentionSource` on the ledger and the load meter."""

    def __init__(self, ledger: RetentionLedger, load: LoadMeter) -> None:
        self._ledger = ledger
        self._load = load

    def full_report(self) -> Report:
        """See `RetentionSource.full_report`."""
        return self._ledger.full_report()

    def changes(self) -> Report:
        """See `RetentionSource.changes`."""
        return self._ledger.changes()

    def acknowledge(self, report: Report) -> None:
        """See `RetentionSource.acknowledge`."""
        self._ledger.acknowledge(report)

    def load(self) -> EngineLoad:
        """See `RetentionSource.load`."""
        return EngineLoad(
            running_requests=self._load.running_requests,
            waiting_requests=self._load.waiting_requests,
            used_blocks=self._load.used_blocks,
            retained_blocks=self._ledger.retained_blocks,
            retentions=self._ledger.retentions,
        )

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        """See `RetentionSource.apply`."""
        self._ledger.apply(directives, sent_at=sent_at)


class PlaneLink:
    """Registers the engine and reports its retentions, from a daemon thread.

    Args:
        target: Address of the plane, `host:port`.
        facts: What to register.
        ledger: The retentions.
        load: The load.

    """

    def __init__(
        self, *, target: str, facts: EngineFacts, ledger: RetentionLedger, load: LoadMeter
    ) -> None:
        self._target = target
        self._facts = facts
        self._ledger = ledger
        self._load = load
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: EngineLink | None = None
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], object] | None = None

    def start(self, *, nixl_host: str, nixl_port: int, compatibility_hash: str) -> None:
        """Starts the thread; a second call does nothing. Never waits."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(
            target=self._run,
            args=(nixl_host, nixl_port, compatibility_hash),
            name="kvplane-link",
            daemon=True,
        )
        self._thread.start()

    def notify(self) -> None:
        """Something is to be reported: send it at once. Never waits."""
        if (link := self._link) is not None:
            link.notify_threadsafe()

    def stop(self) -> None:
        """Takes the registration back and ends the thread; waits a short while at most."""
        thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        if loop is not None and stop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stop)
            except RuntimeError:
                return  # It closed meanwhile: the link is over.
        thread.join(_STOP_SECONDS)

    def _run(self, nixl_host: str, nixl_port: int, compatibility_hash: str) -> None:
        try:
            asyncio.run(self._serve(nixl_host, nixl_port, compatibility_hash))
        except Exception:  # noqa: BLE001 - the outermost boundary of this thread
            # The engine serves on; its retentions end at their TTL and nobody hears of them.
            _log.exception("the link to the plane at %s is over", self._target)

    async def _serve(self, nixl_host: str, nixl_port: int, compatibility_hash: str) -> None:
        from kvplane.client.engine_link import EngineLink  # noqa: PLC0415 - see the module's head
        from kvplane.client.errors import FencedError  # noqa: PLC0415 - as above
        from kvplane_connector.registration import engine_message  # noqa: PLC0415 - as above

        engine: engine_pb2.Engine = engine_message(
            self._facts,
            nixl_host=nixl_host,
            nixl_port=nixl_port,
            total_blocks=self._load.total_blocks,
            compatibility_hash=compatibility_hash,
        )
        link = EngineLink(
            target=self._target,
            engine_id=self._facts.engine_id,
            engine=engine,
            source=LinkSource(self._ledger, self._load),
            clock=EngineClock(),
            on_registered=self._registered,
        )
        stopping = asyncio.Event()
        self._loop, self._stop, self._link = asyncio.get_running_loop(), stopping.set, link
        try:
            async with asyncio.TaskGroup() as tasks:
                closer = tasks.create_task(self._close_on(stopping, link))
                try:
                    await link.run()
                except FencedError as error:
                    _log.error("%s; the engine serves on without the plane", error)
                    closer.cancel()
        finally:
            self._link = None

    @staticmethod
    async def _close_on(stopping: asyncio.Event, link: "EngineLink") -> None:
        await stopping.wait()
        await link.aclose()

    def _registered(self, registration: "Registration") -> None:
        if registration.lease_ttl > 0:
            self._ledger.set_ttl(registration.lease_ttl)
