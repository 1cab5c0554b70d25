"""The worker's half: keeps retentions as long as promised, and reads only what others keep."""

import logging
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from kvplane_connector.clock import EngineClock
from kvplane_connector.read_fence import ReadFence, widest_offset
from kvplane_connector.step_orders import ATTRIBUTE, StepNews, StepOrders
from kvplane_connector.versions import reaps_in_order, require_failures_told
from kvplane_connector.vllm_names import (
    NixlConnectorMetadata,
    NixlPullConnectorWorker,
)

_log = logging.getLogger(__name__)


class KvplaneWorker(NixlPullConnectorWorker):
    """vLLM's pull worker, with leases. Runs in vLLM's step loop, on every rank."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        require_failures_told(self)
        self._clock = EngineClock()
        self._fence = ReadFence(clock=self._clock, ahead=self._engine_clock_offset)
        self._kept: set[str] = set()
        self._released: set[str] = set()
        self._notices: Counter[str] = Counter()
        self._news: StepNews | None = None
        self._in_order = reaps_in_order(NixlPullConnectorWorker)
        # Reads of what is kept are taken out before vLLM sees them, because for vLLM the
        # first read ends a retention, and a second one is an error.
        self._all_notifs = self.nixl_wrapper.get_new_notifs
        self.nixl_wrapper.get_new_notifs = self._notifs_for_vllm

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        """See vLLM. Carries out what the scheduler ordered."""
        orders = getattr(metadata, ATTRIBUTE, None)
        if isinstance(orders, StepOrders):
            self._kept |= orders.keep
        super().start_load_kv(metadata)
        if isinstance(orders, StepOrders) and orders.deadlines:
            self._set_deadlines(orders.deadlines, metadata.scheduler_clock)
        if isinstance(orders, StepOrders) and orders.release:
            self._release(orders.release)
        if self._kept:
            # vLLM takes out what was aborted or is over.
            self._kept &= self._reqs_to_process

    def take_news(self) -> StepNews | None:
        """What the scheduler is to hear after this step; None if nothing."""
        news, self._news = self._news, None
        return news

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> tuple[dict[Any, str], float]:
        """See vLLM. What it takes for the difference of the clocks is off by what it took."""
        started = self._clock.now()
        agents, offset = super()._nixl_handshake(*args, **kwargs)
        return agents, widest_offset(offset, took=self._clock.now() - started)

    def _is_turn2_read_expired(self, meta: Any) -> bool:
        """See vLLM, which asks this before any read and, for itself, trusts one without expiry."""
        return not self._fence.may_begin(meta)

    def _pop_done_transfers(
        self, transfers: dict[str, list[int]]
    ) -> tuple[set[str], set[str]] | set[str]:
        """See vLLM. A read that ended too late has failed: nobody may use or share its blocks."""
        popped = super()._pop_done_transfers(transfers)
        if isinstance(popped, set):
            # vLLM before 0.30 hears of failures by a call for each.
            for name in self._ended_late(popped):
                self._handle_failed_transfer(name, None)
            return popped
        done, failed = popped
        return done, failed | self._ended_late(done - failed)

    def _ended_late(self, names: AbstractSet[str]) -> set[str]:
        late: set[str] = set()
        for name in names:
            meta = self._recving_metadata.get(name)
            if meta is not None and not self._fence.ended_in_time(meta):
                late.add(name)
                self.xfer_stats.record_kv_expired_req()
                _log.warning(
                    "Refusing what was read for %s from engine %s: it may have been given away "
                    "before the read ended.",
                    name,
                    meta.remote.engine_id,
                )
        return late

    def _get_new_notifs(self) -> set[str]:
        """See vLLM. Adds the kept retentions whose time has come, and those given up."""
        done = super()._get_new_notifs()
        if self._kept:
            now = self._clock.now()
            expired = [
                name for name in self._kept if self._reqs_to_send.get(name, float("inf")) <= now
            ]
            for name in expired:
                self._forget(name)
            done.update(expired)
        if self._released:
            done |= self._released
            self._released = set()
        return done

    def _release(self, names: AbstractSet[str]) -> None:
        """Gives retentions up, to be returned as sent at the end of this step."""
        for name in names:
            # What is not there has ended already, and must not be reported twice.
            if name in self._reqs_to_send:
                self._forget(name)
                self._released.add(name)

    def _forget(self, name: str) -> None:
        del self._reqs_to_send[name]
        self._reqs_to_process.discard(name)
        self._kept.discard(name)
        self._notices.pop(name, None)
        # How many ranks of a reader have read it so far.
        self.consumer_notification_counts_by_req.pop(name, None)
        self.expected_consumer_notifications_by_req.pop(name, None)

    def _set_deadlines(self, deadlines: Mapping[str, float], scheduler_clock: float) -> None:
        # The scheduler may run on another host, whose clock starts elsewhere.
        ahead = self._clock.now() - scheduler_clock
        news = self._next_news()
        for name, deadline in deadlines.items():
            # What is not there has ended already, and must not be reported twice.
            if name in self._reqs_to_send:
                self._reqs_to_send[name] = deadline + ahead
                news.applied[name] = deadline
        if self._in_order:
            self._reqs_to_send = dict(sorted(self._reqs_to_send.items(), key=lambda one: one[1]))

    def _notifs_for_vllm(self, *args: Any, **kwargs: Any) -> dict[str, list[bytes]]:
        notifs: dict[str, list[bytes]] = self._all_notifs(*args, **kwargs)
        if not self._kept or not notifs:
            return notifs
        return {
            agent: [one for one in messages if not self._is_read_of_kept(one)]
            for agent, messages in notifs.items()
        }

    def _is_read_of_kept(self, message: bytes) -> bool:
        """Whether a notice `request:readers` is of a kept retention; counts it if so."""
        name, _, readers = message.decode("utf-8", "replace").rpartition(":")
        if name not in self._kept:
            return False
        # Each rank of a reader sends one notice.
        self._notices[name] += 1
        self._next_news().reads[name] = self._notices[name] // max(1, int(readers or 1))
        return True

    def _next_news(self) -> StepNews:
        if self._news is None:
            self._news = StepNews()
        return self._news
