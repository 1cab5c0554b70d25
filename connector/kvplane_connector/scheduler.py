"""The scheduler's half: retains turns under leases, and cuts handles to what may be read."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvplane.transfer_params import WORD_KEY, TurnMark, Word
from kvplane_connector.engine_facts import compatibility_hash
from kvplane_connector.generation_words import WordSlots, tables_of
from kvplane_connector.kv_blocks import CacheGroup, blocks_of_tokens
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.offered_handles import OfferedHandles, is_fenced
from kvplane_connector.prefix_check import Outcome
from kvplane_connector.pressure import MemoryPressure
from kvplane_connector.read_stats import ReadStats
from kvplane_connector.request_context import LeadingTokens, context_for, is_provable, media_of
from kvplane_connector.retentions import NO_EXPIRY, RetainedTurn, RetentionLedger
from kvplane_connector.side_channel import listen_on
from kvplane_connector.step_orders import ATTRIBUTE, StepNews, StepOrders
from kvplane_connector.step_rest import StepRest
from kvplane_connector.turn_marks import fits_text, usable_mark
from kvplane_connector.usable_handle import (
    CHECKED,
    READ_DONE,
    NeededBlocks,
    drop_handle,
    forget_notes,
    is_usable,
)
from kvplane_connector.vllm_names import (
    NixlConnectorMetadata,
    NixlPullConnectorScheduler,
    vllm_listener,
)

if TYPE_CHECKING:
    from kvplane_connector.plane_link import PlaneLink

_log = logging.getLogger(__name__)

# Characters of an id that is logged because it is too long.
_SHOWN = 128
_EXPIRY = "remote_blocks_expiry_time"


class KvplaneScheduler(NixlPullConnectorScheduler):
    """vLLM's pull scheduler, with leases.

    Runs in vLLM's step loop: nothing here waits for the plane.

    Args:
        vllm_config: vLLM's.
        engine_id: vLLM's id of this process.
        kv_cache_config: vLLM's.
        ledger: The account of retentions, shared with the link.
        load: The load meter, shared with the link.
        pressure: What gives retentions up for requests that are short of memory.
        link: The link to the plane; None for none.
        rest: Told whether the engine may rest; None if it never does.
        groups: The model's cache groups.

    """

    def __init__(
        self,
        vllm_config: Any,
        engine_id: str,
        kv_cache_config: Any,
        *,
        ledger: RetentionLedger,
        load: LoadMeter,
        pressure: MemoryPressure,
        link: "PlaneLink | None",
        rest: StepRest | None = None,
        groups: Sequence[CacheGroup] = (),
    ) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._ledger = ledger
        self._load = load
        self._pressure = pressure
        self._link = link
        self._rest = rest
        self._groups = groups
        # A state has taken in every token that vLLM fed, one behind a stop included; no proof
        # that is cut can say so.
        self._holds_states = not all(one.by_position for one in groups)
        if self._holds_states:
            _log.warning("No turns are retained: the model keeps states, and not tokens' KV alone.")
        self._keep: set[str] = set()
        self._offered = OfferedHandles(
            needed=NeededBlocks(groups, self.blocks_per_sw, block_size=self.block_size),
            block_size=self.block_size,
        )
        self._slots: WordSlots | None = None
        self._lacked_word = False
        self._reads: dict[str, Word] = {}

    def set_xfer_handshake_metadata(self, metadata: Mapping[Any, Any]) -> None:
        """The workers are set up and the side channel listens: now others may hear of us."""
        if tables := tables_of(metadata):
            self._slots = WordSlots(tables)
        super().set_xfer_handshake_metadata(metadata)
        if self._link is not None:
            self._link.start(
                nixl_host=self.side_channel_host,
                nixl_port=self.side_channel_port,
                compatibility_hash=compatibility_hash(metadata),
                validated_reads=self._slots is not None,
            )

    def on_new_request(self, request: Any) -> None:
        """See vLLM. Drops what was sent in place of a handle, or of notes of ours."""
        self._load.arrived(request.request_id)
        params = request.kv_transfer_params
        self._pressure.arrived(request.request_id, usable_mark(params))
        if params:
            forget_notes(params)
            if not self._is_usable(request, params):
                drop_handle(params)
                _log.warning("%s is computed: its handle is not one", request.request_id)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """See vLLM. Offers of a prefill leg's handle only what its blocks provably hold."""
        self._load.asked(request.request_id)
        self._pressure.asked(request, num_computed_tokens)
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill") and not is_fenced(params):
            if CHECKED not in params:
                params[CHECKED] = True
                _log.warning("%s is computed: %s", request.request_id, Outcome.UNFENCED.value)
            # vLLM then tells the owner, as after a read, that the blocks are not needed.
            return 0, False
        if params and params.get("do_remote_decode"):
            if params.get(READ_DONE):
                # The read failed, or the request was preempted after it. vLLM would offer the
                # blocks again, never read them, and leave the request waiting for ever.
                return 0, False
            if params.get("remote_block_ids") and CHECKED not in params:
                self._offered.cut(request, params)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See vLLM."""
        self._load.placed(request.request_id)
        self._pressure.placed(request)
        params = request.kv_transfer_params
        if params:
            if num_external_tokens > 0 and (word := Word.decode(params)) is not None:
                self._reads[request.request_id] = word
            if self.is_bidirectional_kv_xfer_enabled:
                # vLLM leaves out turns served from the engine's own cache; their blocks
                # would then have no expiry and stay for good.
                self._reqs_in_batch.add(request.request_id)
            if params.get("do_remote_decode"):
                if num_external_tokens == 0 and not params.get(READ_DONE):
                    # Nothing is read, so the owner is not to be told of a read.
                    params["remote_block_ids"] = None
            elif usable_mark(params) is not None:
                self._keep.add(request.request_id)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> NixlConnectorMetadata:
        """See vLLM. The only work of each step: looks at whether there is something to say."""
        meta = super().build_connector_meta(scheduler_output)
        self._pressure.relieve(scheduler_output.num_scheduled_tokens)
        deadlines = self._ledger.take_orders()
        release = self._ledger.take_releases()
        slots = self._slots.take_news() if self._slots is not None else {}
        quiet = False
        if self._rest is not None:
            quiet = (
                not scheduler_output.num_scheduled_tokens
                and not scheduler_output.finished_req_ids
                and not self._load.present_requests
                and not (deadlines or release or slots or self._keep or self._reads)
                and not (meta.reqs_to_send or meta.reqs_to_recv or meta.reqs_not_processed)
            )
            self._rest.stepped(quiet=quiet)
        if deadlines or release or slots or quiet or self._keep or self._reads:
            words = {name: word for name, word in self._reads.items() if name in meta.reqs_to_recv}
            orders = StepOrders(
                keep=self._keep,
                deadlines=deadlines,
                release=release,
                slots=slots,
                words=words,
                at_rest=quiet,
            )
            setattr(meta, ATTRIBUTE, orders)
            self._keep, self._reads = set(), {}
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """See vLLM."""
        super().update_connector_output(connector_output)
        changed = False
        news = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(news, StepNews):
            for name, reads in news.reads.items():
                self._ledger.read(name, reads)
            changed = self._ledger.confirm(news.applied) or bool(news.reads)
        if connector_output.finished_sending:
            self._pressure.came_back()
        for name in connector_output.finished_sending or ():
            changed = self._ledger.end(name) or changed
            if self._slots is not None:
                self._slots.end(name)
        if changed:
            self._notify()

    def request_finished(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See vLLM. A decode turn with a mark is retained under a lease, and reported.

        While a request waits for blocks, only what can be given up at once is retained, or turns
        that come one after the other would each wait for the last one's lease. What cannot be
        reported is of use to nobody.
        """
        self._load.left(request.request_id)
        self._pressure.left(request.request_id)
        params = request.kv_transfer_params
        if params and params.get("do_remote_decode"):
            return self._stage(request, block_ids)
        mark = usable_mark(params)
        if mark is None:
            return super().request_finished(request, block_ids)
        lacks_blocks = self._pressure.lacks_blocks and not self._has_word
        if lacks_blocks or self._holds_states or not _is_reportable(request):
            # Without blocks there is nothing to keep; the rest is vLLM's book-keeping. The
            # workers are told to forget the request as they are of one that was aborted.
            super().request_finished(request, [() for _ in block_ids])
            self._reqs_not_processed.add(request.request_id)
            return False, None
        # The last token's KV may still be on its way: vLLM counts steps that it has only begun.
        tokens = min(request.num_computed_tokens, request.num_tokens - 1)
        stock_ttl, self.decoder_kv_blocks_ttl = self.decoder_kv_blocks_ttl, self._ledger.ttl
        try:
            retained, handle = super().request_finished(
                request, blocks_of_tokens(self._groups, block_ids, tokens)
            )
        finally:
            self.decoder_kv_blocks_ttl = stock_ttl
        if retained and handle is not None:
            self._retain(request, mark, tokens, block_ids, handle)
        return retained, handle

    def give_up_retentions(self) -> bool:
        """Nothing is to be retained any longer; returns whether nothing is."""
        return self._ledger.give_up_all()

    def shutdown(self) -> None:
        """See vLLM."""
        if self._link is not None:
            self._link.stop()
        super().shutdown()

    @staticmethod
    def _nixl_handshake_listener(*args: Any, **kwargs: Any) -> None:
        """See vLLM. Goes on after a message that it cannot read."""
        listen_on(vllm_listener, *args, **kwargs)

    def _stage(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keeps a prompt's blocks for the decode leg, and says until when: vLLM does not.

        The decode engine's heartbeats can only keep them longer. Who validates goes by the word
        and reads them however late; nothing else gives them up before their expiry.
        """
        staged, handle = super().request_finished(request, block_ids)
        if staged and handle is not None:
            handle[_EXPIRY] = self._reqs_need_send[request.request_id]
            self._add_word(request.request_id, handle)
        return staged, handle

    @property
    def _has_word(self) -> bool:
        return self._slots is not None and self._slots.has_free

    def _add_word(self, name: str, handle: dict[str, Any]) -> bool:
        """Puts a word into the handle of blocks that stay; False if there is none to be had."""
        if self._slots is None:
            return False
        if (word := self._slots.take(name)) is None:
            if not self._lacked_word:
                self._lacked_word = True
                _log.warning(
                    "No generation word is free: reads of %s, and of others to come in such a "
                    "moment, are fenced by their expiry.",
                    name,
                )
            return False
        handle[WORD_KEY] = word.encode()
        return True

    def _retain(
        self,
        request: Any,
        mark: TurnMark,
        tokens: int,
        block_ids: Sequence[Sequence[int]],
        handle: dict[str, Any],
    ) -> None:
        handle["remote_num_tokens"] = tokens
        deadline = handle[_EXPIRY]
        if has_word := self._add_word(request.request_id, handle):
            handle[_EXPIRY] = NO_EXPIRY
        turn = RetainedTurn(
            retention_id=request.request_id,
            mark=mark,
            token_ids=LeadingTokens(request.all_token_ids, tokens),
            context=context_for(request),
            media=media_of(request),
            block_ids=_distinct(block_ids),
            block_size=self.block_size,
            kv_transfer_params=dict(handle),
            expiry=deadline,
            has_word=has_word,
        )
        self._ledger.begin(turn)
        self._notify()

    def take_stats(self) -> ReadStats | None:
        """What became of handles since the last call; None if none came."""
        return self._offered.take_stats()

    def _is_usable(self, request: Any, params: dict[str, Any]) -> bool:
        if not is_usable(params):
            return False
        if not params.get("do_remote_prefill") or not params.get("remote_block_ids"):
            # What a prefill leg may read is seen when it is asked for.
            return True
        # Of a model that keeps states vLLM has the last token of a prompt computed anew.
        tokens = len(request.prompt_token_ids or ()) - self._holds_states
        return self._offered.holds(params, tokens)

    def _notify(self) -> None:
        if self._link is not None:
            self._link.notify()


def _is_reportable(request: Any) -> bool:
    """Whether the plane can hear of a turn, and readers can know what its blocks hold."""
    if is_provable(request) and fits_text(request.request_id):
        return True
    _log.warning(
        "%r is not retained: its prompt is not tokens alone, or its id cannot be reported",
        request.request_id[:_SHOWN],
    )
    return False


def _distinct(block_ids: Sequence[Sequence[int]]) -> frozenset[int]:
    """The blocks of all cache groups."""
    blocks = frozenset[int]().union(*block_ids)
    # Block 0 is vLLM's stand-in for blocks outside a window.
    return blocks - {0} if 0 in blocks else blocks
