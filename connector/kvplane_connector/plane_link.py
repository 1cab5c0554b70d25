"""The link to the plane: a thread of its own, so that the step loop never waits for it.

The thread is a daemon with its own event loop. gRPC, and all that imports it, is imported
inside the thread: vLLM may fork before, and must not after.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kvplane.client.retention import Directive, EngineLoad, Report
from kvplane_connector.addresses import side_channel_trouble, until_open
from kvplane_connector.clock import EngineClock
from kvplane_connector.engine_facts import EngineFacts
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.retentions import RetentionLedger

if TYPE_CHECKING:
    from kvplane.client import EngineLink, Registration

_log = logging.getLogger(__name__)

# vLLM gives its parts a moment to stop; the plane may be away.
_STOP_SECONDS = 3.0
# How long to wait for the engine's own server before it is registered all the same.
_SERVER_SECONDS = 30.0


class LinkSource:
    """Implements `kvplane.client.retention.RetentionSource` on the ledger and the load meter."""

    def __init__(
        self,
        ledger: RetentionLedger,
        load: LoadMeter,
        on_orders: Callable[[], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._load = load
        self._on_orders = on_orders

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
        if directives and self._on_orders is not None:
            self._on_orders()


class PlaneLink:
    """Registers the engine and reports its retentions, from a daemon thread.

    Args:
        target: Addresses of the plane, `host:port`, separated by commas.
        facts: What to register.
        ledger: The retentions.
        load: The load.
        on_orders: Called, from the thread, when the plane ordered something of retentions.
        pause_after_failure: Seconds until a link that failed for a reason within is made anew.

    """

    def __init__(
        self,
        *,
        target: str,
        facts: EngineFacts,
        ledger: RetentionLedger,
        load: LoadMeter,
        on_orders: Callable[[], None] | None = None,
        pause_after_failure: float = 5.0,
    ) -> None:
        self._pause_after_failure = pause_after_failure
        self._target = target
        self._facts = facts
        self._ledger = ledger
        self._load = load
        self._on_orders = on_orders
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: EngineLink | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._close: Callable[[], object] | None = None

    def start(
        self,
        *,
        nixl_host: str,
        nixl_port: int,
        compatibility_hash: str,
        validated_reads: bool = False,
    ) -> None:
        """Starts the thread; a second call does nothing. Never waits."""
        if self._thread is not None:
            return
        if trouble := side_channel_trouble(nixl_host, self._facts.endpoint):
            _log.warning("%s", trouble)
        self._thread = threading.Thread(
            target=self._run,
            kwargs={
                "nixl_host": nixl_host,
                "nixl_port": nixl_port,
                "compatibility_hash": compatibility_hash,
                "validated_reads": validated_reads,
            },
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
        self._stopping.set()
        loop, close = self._loop, self._close
        if loop is not None and close is not None:
            with contextlib.suppress(RuntimeError):  # It closed meanwhile: the link is over.
                loop.call_soon_threadsafe(close)
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self, **known: Any) -> None:
        while not self._stopping.is_set():
            try:
                asyncio.run(self._serve(**known))
            except Exception:  # noqa: BLE001 - the outermost boundary of this thread
                # What a report cannot carry is over with its retention; until then others wait.
                _log.exception("the link to the plane at %s failed, and is made anew", self._target)
                self._stopping.wait(self._pause_after_failure)

    async def _serve(self, **known: Any) -> None:
        from kvplane.client import EngineLink, FencedError  # noqa: PLC0415 - see the module's head
        from kvplane_connector.registration import engine_message  # noqa: PLC0415 - as above

        clock = EngineClock()
        closing = asyncio.Event()
        self._loop, self._close = asyncio.get_running_loop(), closing.set
        # vLLM opens its server last; until then nobody is to be sent here.
        if not await until_open(self._facts.endpoint, patience=_SERVER_SECONDS, clock=clock):
            _log.warning(
                "nothing listens at %s, as seen from here; the engine registers all the same",
                self._facts.endpoint,
            )
        link = EngineLink(
            target=self._target,
            engine_id=self._facts.engine_id,
            engine=engine_message(self._facts, total_blocks=self._load.total_blocks, **known),
            source=LinkSource(self._ledger, self._load, self._on_orders),
            clock=clock,
            on_registered=self._registered,
        )
        if self._stopping.is_set():
            return
        self._link = link
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._close_on(closing, link))
                try:
                    await link.run()
                except FencedError as error:
                    _log.error("%s; the engine serves on without the plane", error)
                    self._stopping.set()
                finally:
                    closing.set()
        finally:
            self._link = None

    @staticmethod
    async def _close_on(closing: asyncio.Event, link: "EngineLink") -> None:
        await closing.wait()
        await link.aclose()

    def _registered(self, registration: "Registration") -> None:
        if registration.lease_ttl > 0:
            self._ledger.set_ttl(registration.lease_ttl)
