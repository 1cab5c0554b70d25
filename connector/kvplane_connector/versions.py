"""The one module that knows vLLM's versions.

vLLM's handles carry an expiry in the owner's clock, and its side channel tells that clock, since
0.26. Without them a read of blocks that were given away cannot be noticed, so older ones are
refused. Since 0.30 a failed read is told to the scheduler by the request's name; before, it is
told by its blocks, and not at all for models with several kinds of cache, which are refused there.

What all supported versions have is declared in `vllm_names.py`. What only newer ones have is
either a part of validating reads, which is asked about once, or looked up here. A test reads the
sources of every supported version for all of it.
"""

import re
from collections.abc import MutableMapping
from typing import Any

OLDEST = (0, 26)

# What reads of a word after a read rest on, since 0.30: notices that wait for the end of a read,
# and one place where the ends of retentions are told; see worker.py.
_VALIDATION = ("get_transfer_results", "_read_blocks", "_send_pending_recv_notifs")
# Declared members that older ones have not got, or that take less there. They are used where reads
# are validated, or called by vLLM alone.
NEWER_SINCE = (0, 30)
NEWER = frozenset(
    {
        "NixlPullConnector.has_pending_block_frees",
        "NixlPullConnectorWorker.get_transfer_results",
        "NixlPullConnectorWorker._handle_failed_transfer",
        "NixlPullConnectorWorker._pending_recv_notifs",
        "NixlPullConnectorWorker._recv_failures",
    }
)

# What vLLM asks about a read before it and after it; see worker.py.
_FENCE = ("_is_turn2_read_expired", "_pop_done_transfers", "_nixl_handshake")


class UnsupportedVllmError(RuntimeError):
    """This vLLM cannot be used; the message says which can."""


def require_supported(version: str) -> None:
    """Returns if vLLM `version` is supported.

    Raises:
        UnsupportedVllmError: It is older than the oldest supported one, or says nothing.

    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise UnsupportedVllmError(
            f"KvplaneConnector needs vLLM {OLDEST[0]}.{OLDEST[1]} or later; this is {version!r}. "
            "Upgrade vLLM, or run this engine with NixlConnector and name it to the plane by hand"
        )


def require_fence(worker_class: type, version: str) -> None:
    """Returns if the worker of vLLM `version` still asks what the fence around reads answers.

    Raises:
        UnsupportedVllmError: It does not, and would read what may have been given away.

    """
    missing = [name for name in _FENCE if not hasattr(worker_class, name)]
    if missing:
        raise UnsupportedVllmError(
            f"KvplaneConnector cannot fence the reads of vLLM {version}, whose worker has no "
            f"{', '.join(missing)}. Use a newer kvplane, or an older vLLM from "
            f"{OLDEST[0]}.{OLDEST[1]} on"
        )


def can_validate(worker_class: type) -> bool:
    """Whether reads can be validated with the worker of this vLLM, and not only fenced."""
    return all(hasattr(worker_class, name) for name in _VALIDATION)


def require_failures_told(worker: Any, worker_class: type) -> None:
    """Returns if the scheduler hears of reads that this worker of vLLM's class calls failed.

    Raises:
        UnsupportedVllmError: It would take them for good ones, as vLLM before 0.30 does with a
            model that has several kinds of KV cache.

    """
    tells_by_name = hasattr(worker_class, "get_transfer_results")
    if getattr(worker, "_is_hma_required", False) and not tells_by_name:
        raise UnsupportedVllmError(
            "KvplaneConnector needs vLLM 0.30 or later for models with several kinds of KV cache "
            "(sliding windows, state spaces): before, vLLM uses blocks whose read failed. Upgrade "
            "vLLM, or start it with --disable-hybrid-kv-cache-manager"
        )


def require_engines_own_memory(worker: Any) -> None:
    """Returns if others read what this worker computes in, and not in a copy in host memory.

    Raises:
        UnsupportedVllmError: There is a copy. vLLM puts only staged prompts into it: what an engine
            generates would be read as whatever was there before. And a prefill engine that has one
            waits for ever for what a decode engine offers.

    """
    if worker.use_host_buffer:
        raise UnsupportedVllmError(
            'KvplaneConnector cannot use "kv_buffer_device": "cpu" with an accelerator: vLLM does '
            "not copy what an engine generates into its host buffer, so that turns cannot be read "
            "from there. Leave it out, or run this engine with NixlConnector"
        )


def reaps_in_order(worker_class: type) -> bool:
    """Whether the worker looks at expiries from the front and stops at the first live one.

    vLLM up to 0.30 does: a renewed retention in front then hides an expired one behind it
    unless the deadlines are kept in order.
    """
    return not hasattr(worker_class, "_reap_expired_send_leases")


def clock_ahead(metadata: Any, now: float) -> float:
    """Seconds that a worker's clock, at `now`, is ahead of the scheduler's.

    vLLM 0.26 does not tell the scheduler's, and takes both for one.
    """
    told: float = getattr(metadata, "scheduler_clock", 0.0)
    return now - told if told else 0.0


def reader_counts(worker: Any) -> tuple[MutableMapping[str, int], ...]:
    """How many ranks of a reader have read each retention, and how many will, as vLLM counts them.

    vLLM before 0.29 knows the second from each notice.
    """
    expected = getattr(worker, "expected_consumer_notifications_by_req", None)
    counts: MutableMapping[str, int] = worker.consumer_notification_counts_by_req
    return (counts,) if expected is None else (counts, expected)


def watermark(scheduler_config: Any) -> float:
    """Part of the pool that vLLM keeps free when it admits a request; older ones keep none."""
    kept: float = getattr(scheduler_config, "watermark", 0.0)
    return kept


def data_parallel_rank(parallel_config: Any) -> int:
    """Which of the data parallel engines this one is.

    Newer vLLM lets each of a dense model's take itself for the only one, and counts them apart.
    """
    rank: int = getattr(parallel_config, "data_parallel_index", parallel_config.data_parallel_rank)
    return rank


def context_ranks(parallel_config: Any) -> int:
    """How many ranks hold a part each of a block; not every vLLM can split blocks so."""
    decode: int = getattr(parallel_config, "decode_context_parallel_size", 1)
    prefill: int = getattr(parallel_config, "prefill_context_parallel_size", 1)
    return decode * prefill


def has_embeddings(request: Any) -> bool:
    """Whether a part of the prompt is not tokens; newer vLLM says so of mixed ones, too."""
    return any(
        getattr(request, name, None) is not None
        for name in ("prompt_embeds", "prompt_is_token_ids")
    )


def rank_of(key: tuple[int, int] | int) -> tuple[int, int]:
    """A rank's pipeline and tensor rank; older vLLM has no pipeline ranks."""
    return key if isinstance(key, tuple) else (0, key)
