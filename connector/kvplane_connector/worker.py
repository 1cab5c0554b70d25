"""The worker's half: keeps retentions as long as promised, and uses only what others kept."""

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from kvplane.transfer_params import Word
from kvplane_connector.clock import EngineClock
from kvplane_connector.generation_words import (
    BACKENDS,
    SLOTS,
    WORD_BYTES,
    WordMemory,
    WordTable,
)
from kvplane_connector.notices import read_notice
from kvplane_connector.read_fence import ReadFence, widest_offset
from kvplane_connector.read_stats import ReadStats
from kvplane_connector.step_orders import ATTRIBUTE, StepNews, StepOrders, WordsPayload
from kvplane_connector.validated_reads import LANDING_WORDS, Source, ValidatedReads, Verdict
from kvplane_connector.versions import (
    can_validate,
    clock_ahead,
    reader_counts,
    reaps_in_order,
    require_engines_own_memory,
    require_failures_told,
)
from kvplane_connector.vllm_names import (
    NixlConnectorMetadata,
    NixlPullConnectorWorker,
)
from kvplane_connector.worker_spin import WorkerSpin

_log = logging.getLogger(__name__)

# The attribute of what vLLM knows of a read's owner under which the owner's word stands.
_WORD = "kvplane_word"


class KvplaneWorker(NixlPullConnectorWorker):
    """vLLM's pull worker, with leases. Runs in vLLM's step loop, on every rank.

    Args:
        vllm_config: vLLM's.
        engine_id: vLLM's id of this process.
        kv_cache_config: vLLM's.
        validate: Whether to validate reads by generation words, where that is possible.
        spin: Told whether the engine rests after the step under way.

    """

    # For a shutdown of what was never set up.
    _words: WordTable | None = None
    _reads: ValidatedReads | None = None

    def __init__(
        self,
        vllm_config: Any,
        engine_id: str,
        kv_cache_config: Any,
        *,
        validate: bool = True,
        spin: WorkerSpin | None = None,
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        require_failures_told(self, NixlPullConnectorWorker)
        require_engines_own_memory(self)
        self.xfer_stats = ReadStats()
        self._validate = validate
        self._spin = spin or WorkerSpin()
        # Whose data is being asked for at this moment, and where its word is.
        self._asking: tuple[str, Word, Source] | None = None
        self._clock = EngineClock()
        self._fence = ReadFence(clock=self._clock, ahead=self._engine_clock_offset)
        self._kept: set[str] = set()
        # None of the kept ones ends before.
        self._next_end = math.inf
        self._released: set[str] = set()
        self._notices: Counter[str] = Counter()
        self._news: StepNews | None = None
        self._in_order = reaps_in_order(NixlPullConnectorWorker)
        # Reads of what is kept are taken out before vLLM sees them, because for vLLM the
        # first read ends a retention, and a second one is an error.
        self._all_notifs = self.nixl_wrapper.get_new_notifs
        self.nixl_wrapper.get_new_notifs = self._notifs_for_vllm

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """See vLLM. The words are registered first: vLLM then tells others of all that is."""
        if self._validate:
            self._register_words()
        else:
            _log.info("Reads are fenced by expiries: the setting validate_reads is off.")
        super().register_kv_caches(kv_caches)
        told = self.xfer_handshake_metadata
        if self._words is not None and told is not None:
            fields: Any = told
            self.xfer_handshake_metadata = WordsPayload(
                **{one.name: getattr(told, one.name) for one in dataclasses.fields(fields)},
                kvplane_words=(self._words.address, self._words.start),
            )

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        """See vLLM. Carries out what the scheduler ordered."""
        orders = getattr(metadata, ATTRIBUTE, None)
        self._spin.at_rest = isinstance(orders, StepOrders) and orders.at_rest
        if isinstance(orders, StepOrders):
            self._kept |= orders.keep
            if self._words is not None and orders.slots:
                # Before anything is read into blocks that one of these may have given up.
                self._words.begin(orders.slots, alive=self._reqs_to_process)
            for name, word in orders.words.items():
                setattr(metadata.reqs_to_recv[name].remote, _WORD, word)
        super().start_load_kv(metadata)
        if isinstance(orders, StepOrders) and orders.keep:
            # What vLLM took no note of, this rank serves to nobody (a copy of another's KV).
            self._kept -= orders.keep - self._reqs_to_process
        if isinstance(orders, StepOrders) and orders.deadlines:
            # The scheduler may run on another host, whose clock starts elsewhere.
            self._set_deadlines(orders.deadlines, clock_ahead(metadata, self._clock.now()))
        if isinstance(orders, StepOrders) and orders.release:
            self._release(orders.release)
        if metadata.reqs_not_processed:
            # What was aborted, vLLM has taken out.
            self._kept &= self._reqs_to_process
        for name in metadata.reqs_to_send:
            if name in self._kept:
                self._next_end = min(self._next_end, self._reqs_to_send.get(name, math.inf))

    def take_news(self) -> StepNews | None:
        """What the scheduler is to hear after this step; None if nothing."""
        news, self._news = self._news, None
        return news

    def get_transfer_results(self) -> Any:
        """See vLLM. All ends of retentions pass here, and their words change before they go on."""
        results = super().get_transfer_results()
        if self._words is not None and results.finished_sending:
            self._words.end(results.finished_sending)
        if self._reads is not None and results.failed_recving:
            for name in results.failed_recving:
                self._reads.forget(name)
        return results

    def shutdown(self) -> None:
        """See vLLM. What readers still read is nobody's from here on."""
        if self._words is not None:
            self._words.end_all()
            self._words = None
        if self._reads is not None:
            self._reads.close()
            self._reads = None
        super().shutdown()

    def _nixl_handshake(self, *args: Any, **kwargs: Any) -> tuple[dict[Any, str], float]:
        """See vLLM. What it takes for the difference of the clocks is off by what it took."""
        started = self._clock.now()
        agents, offset = super()._nixl_handshake(*args, **kwargs)
        return agents, widest_offset(offset, took=self._clock.now() - started)

    def _is_turn2_read_expired(self, meta: Any) -> bool:
        """See vLLM, which asks this before any read and, for itself, trusts one without expiry."""
        if self._word_of(meta) is not None or self._fence.may_begin(meta):
            return False
        self.xfer_stats.record_declined()
        return True

    def _read_blocks(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM, which names everything. Of a read with a word it is noted what it reads."""
        if self._reads is None:
            return super()._read_blocks(*args, **kwargs)
        name, owner = kwargs["request_id"], kwargs["dst_engine_id"]
        word = self._word_of(self._recving_metadata.get(name))
        if word is None:
            return super()._read_blocks(*args, **kwargs)
        rank = kwargs["read_spec"].remote_rank
        self._asking = name, word, Source(owner, rank, self._remote_agents[owner][0, rank])
        try:
            return super()._read_blocks(*args, **kwargs)
        finally:
            self._asking = None

    def _pop_done_transfers(
        self, transfers: dict[str, list[int]]
    ) -> tuple[set[str], set[str]] | set[str]:
        """See vLLM. What was not kept until it was read has failed: nobody may use or share it."""
        unseen = self._unseen(transfers) if transfers else ()
        popped = super()._pop_done_transfers(transfers)
        if isinstance(popped, set):
            # vLLM before 0.30 hears of failures by a call for each.
            for name in self._ended_late(popped):
                self._handle_failed_transfer(name, None)
            return popped
        done, failed = popped
        for name in done.intersection(unseen) - failed:
            _log.error("Refusing what was read for %s: its word was not asked for.", name)
            failed.add(name)
        if self._reads is not None and self._reads.names:
            for name in self._reads.names & done:
                self._look_at(self._reads, name, transfers, done, failed)
        return done, failed | self._ended_late(done - failed)

    def _unseen(self, transfers: Mapping[str, list[int]]) -> list[str]:
        """Requests with a word that read in a way which passed `_make_data_transfer` by.

        None that we know of. One that a new vLLM adds is to cost time, and not to go unvalidated.
        """
        if self._reads is None:
            return []
        known = self._reads.names
        return [
            name
            for name, under_way in transfers.items()
            if under_way
            and name not in known
            # Of a read that failed in part the rest is waited for.
            and name not in self._recv_failures
            and self._word_of(self._recving_metadata.get(name)) is not None
        ]

    def _look_at(
        self,
        reads: ValidatedReads,
        name: str,
        transfers: dict[str, list[int]],
        done: set[str],
        failed: set[str],
    ) -> None:
        """Validates a read whose transfers are over, and corrects vLLM's account of it."""
        if name in failed or name in self._recv_failures:
            reads.forget(name)
            return
        verdict = reads.check(name, transfers)
        if name in transfers:
            done.discard(name)
        if verdict is Verdict.BROKEN:
            self._handle_failed_transfer(name, None, failed)
        elif verdict is not Verdict.PENDING:
            accepted = verdict is Verdict.ACCEPTED
            self.xfer_stats.record_validation(accepted=accepted, seconds=reads.seconds)
            if not accepted:
                failed.add(name)
                _log.warning("Refusing what was read for %s: %s.", name, verdict.value)

    def _ended_late(self, names: AbstractSet[str]) -> set[str]:
        late: set[str] = set()
        for name in names:
            meta = self._recving_metadata.get(name)
            if meta is None or self._word_of(meta) is not None:
                continue
            if not self._fence.ended_in_time(meta):
                late.add(name)
                self.xfer_stats.record_kv_expired_req()
                self.xfer_stats.record_late()
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
        if self._kept and (now := self._clock.now()) >= self._next_end:
            # What ended in the moment after this look, vLLM has taken out itself.
            self._kept &= self._reqs_to_process
            ends = {name: self._reqs_to_send.get(name, math.inf) for name in self._kept}
            expired = [name for name, end in ends.items() if end <= now]
            for name in expired:
                self._forget(name)
                del ends[name]
            self._next_end = min(ends.values(), default=math.inf)
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
        for counts in reader_counts(self):
            counts.pop(name, None)

    def _set_deadlines(self, deadlines: Mapping[str, float], ahead: float) -> None:
        news = self._next_news()
        for name, deadline in deadlines.items():
            # What is not there has ended already, and must not be reported twice.
            if name in self._reqs_to_send:
                self._reqs_to_send[name] = deadline + ahead
                self._next_end = min(self._next_end, deadline + ahead)
                news.applied[name] = deadline
        if self._in_order:
            self._reqs_to_send = dict(sorted(self._reqs_to_send.items(), key=lambda one: one[1]))

    def _register_words(self) -> None:
        """Makes words for what this engine keeps, and a place for those that it reads."""
        nixl = self.nixl_wrapper
        if not can_validate(NixlPullConnectorWorker):
            _log.warning("Reads are fenced by expiries: validating them needs vLLM 0.30 or later.")
            return
        if others := sorted(set(self.nixl_backends) - BACKENDS):
            _log.warning(
                "Reads are fenced by expiries: it is not known whether those of the NIXL backend "
                "%s can be validated.",
                ", ".join(others),
            )
            return
        # As long as NIXL knows of it, others can read it.
        memory = self._word_memory = WordMemory(SLOTS + LANDING_WORDS)
        try:
            registered = nixl.get_reg_descs(
                [(memory.address, len(memory) * WORD_BYTES, 0, "")], "DRAM"
            )
            nixl.register_memory(registered, backends=self.nixl_backends)
            self._registered_descs.append(registered)
            self._reads = ValidatedReads(
                nixl=nixl,
                memory=memory,
                first=SLOTS,
                prepared=self.dst_xfer_side_handles,
                clock=self._clock,
            )
        except Exception as error:  # noqa: BLE001 - NIXL's errors have no common class
            _log.warning("Reads are fenced by expiries: NIXL takes no words: %r.", error)
            return
        self._words = WordTable(memory)
        self._make_transfer = nixl.make_prepped_xfer
        nixl.make_prepped_xfer = self._make_data_transfer

    def _make_data_transfer(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of NIXL's own. A read with a word tells the owner after its word only.

        Told with the data, as vLLM would, an owner gives up what it keeps for one read, and
        changes the word before we have seen it.
        """
        if self._asking is None or self._reads is None:
            return self._make_transfer(*args, **kwargs)
        notice = kwargs.pop("notif_msg", b"")
        transfer = self._make_transfer(*args, **kwargs)
        name, word, source = self._asking
        self._reads.began(name, word, source)
        if notice:
            # vLLM sends it once the read is done and good.
            self._pending_recv_notifs.setdefault(name, []).append((source.agent, notice))
        return transfer

    def _word_of(self, meta: Any) -> Word | None:
        if self._reads is None or meta is None:
            return None
        word = getattr(meta.remote, _WORD, None)
        return word if isinstance(word, Word) else None

    def _notifs_for_vllm(self, *args: Any, **kwargs: Any) -> dict[str, list[bytes]]:
        notifs: dict[str, list[bytes]] = self._all_notifs(*args, **kwargs)
        if not notifs:
            return notifs
        return {
            agent: [one for one in messages if self._is_for_vllm(agent, one)]
            for agent, messages in notifs.items()
        }

    def _is_for_vllm(self, agent: str, message: bytes) -> bool:
        """Whether vLLM is to see a notice; one that is of a kept retention is counted instead."""
        notice = read_notice(message)
        if notice is None:
            # vLLM would raise, which ends the engine.
            _log.warning("Dropping a notice of %s that cannot be read: %r", agent, message[:80])
            return False
        if notice.name not in self._kept:
            return True
        # Each rank of a reader sends one notice.
        self._notices[notice.name] += 1
        self._next_news().reads[notice.name] = self._notices[notice.name] // notice.readers
        return False

    def _next_news(self) -> StepNews:
        if self._news is None:
            self._news = StepNews()
        return self._news
