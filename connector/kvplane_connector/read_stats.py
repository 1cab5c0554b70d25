"""What becomes of reads, beside vLLM's own counts of transfers, in its log and its /metrics.

Workers count reads. The scheduler counts the handles that came with requests, how many of their
tokens the prompts provably shared, and why not more.
"""

from typing import Any

from kvplane_connector.prefix_check import Outcome
from kvplane_connector.vllm_names import NixlKVConnectorStats, NixlPromMetrics

# One sample for each read, of each rank that read.
_ACCEPTED = "kvplane_reads_accepted"
_REFUSED = "kvplane_reads_refused"
_DECLINED = "kvplane_reads_declined"
_LATE = "kvplane_reads_late"
_SECONDS = "kvplane_validation_seconds"
_COUNTS = {
    _ACCEPTED: "Reads whose blocks were still kept after them, as the owner's word said.",
    _REFUSED: "Reads that were recomputed: the owner gave the blocks away before they were over.",
    _DECLINED: "Reads that were not begun: the handle has no word, and its expiry is too near.",
    _LATE: "Reads that were recomputed: the handle has no word, and its expiry passed meanwhile.",
}
# One sample for each handle: its outcome, tokens offered, tokens that may be read.
_HANDLES = "kvplane_handles"
_OFFERED = "kvplane_handle_tokens_offered"
_READABLE = "kvplane_handle_tokens_readable"
_BUCKETS = (10e-6, 20e-6, 40e-6, 80e-6, 160e-6, 320e-6, 640e-6, 2e-3, 10e-3, 50e-3, 0.25, 1.0)


class ReadStats(NixlKVConnectorStats):
    """vLLM's stats of one worker between two steps that report them, and ours."""

    def reset(self) -> None:
        """See vLLM."""
        super().reset()
        self.data.update({key: [] for key in (*_COUNTS, _SECONDS, _HANDLES)})

    def is_empty(self) -> bool:
        """See vLLM."""
        return super().is_empty() and not any(self.data[key] for key in (*_COUNTS, _HANDLES))

    def reduce(self) -> dict[str, int | float]:
        """See vLLM."""
        return super().reduce() | {
            "Num reads validated": len(self.data[_ACCEPTED]),
            "Num reads refused": len(self.data[_REFUSED]) + len(self.data[_LATE]),
            "Num reads declined": len(self.data[_DECLINED]),
            "Handle tokens offered": sum(offered for _, offered, _ in self.data[_HANDLES]),
            "Handle tokens readable": sum(tokens for *_, tokens in self.data[_HANDLES]),
        }

    def record_handle(self, outcome: str, *, offered: int, tokens: int) -> None:
        """A prompt was compared with the proof in its handle."""
        self.data[_HANDLES].append((outcome, offered, tokens))

    def record_validation(self, *, accepted: bool, seconds: float) -> None:
        """The owner's word was read after a read."""
        self.data[_ACCEPTED if accepted else _REFUSED].append(1)
        self.data[_SECONDS].append(seconds)

    def record_declined(self) -> None:
        """A read was not begun."""
        self.data[_DECLINED].append(1)

    def record_late(self) -> None:
        """A read that no word covers ended after the expiry of its handle."""
        self.data[_LATE].append(1)


class ReadMetrics(NixlPromMetrics):
    """vLLM's metrics of transfers, and ours."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._kvplane_counts = {
            key: self._per_engine(
                self._counter_cls(name=f"vllm:{key}", documentation=text, labelnames=labelnames)
            )
            for key, text in _COUNTS.items()
        }
        self._kvplane_handles = {
            outcome.label: self._per_engine(
                self._counter_cls(
                    name=f"vllm:{_HANDLES}_{outcome.label}",
                    documentation=f"Handles of which it was found: {outcome.value}.",
                    labelnames=labelnames,
                )
            )
            for outcome in Outcome
        }
        self._kvplane_tokens = [
            self._per_engine(
                self._counter_cls(name=f"vllm:{key}", documentation=text, labelnames=labelnames)
            )
            for key, text in (
                (_OFFERED, "Tokens whose blocks handles named."),
                (_READABLE, "Of those, the ones that prompts provably shared."),
            )
        ]
        self._kvplane_seconds = self._per_engine(
            self._histogram_cls(
                name=f"vllm:{_SECONDS}",
                documentation="From the arrival of a read's data to the word that it was kept.",
                buckets=_BUCKETS,
                labelnames=labelnames,
            )
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """See vLLM."""
        super().observe(transfer_stats_data, engine_idx)
        for key, counters in self._kvplane_counts.items():
            if samples := transfer_stats_data.get(key):
                counters[engine_idx].inc(sum(samples))
        for outcome, *tokens in transfer_stats_data.get(_HANDLES, ()):
            self._kvplane_handles[outcome][engine_idx].inc()
            for total, count in zip(self._kvplane_tokens, tokens, strict=True):
                total[engine_idx].inc(count)
        for seconds in transfer_stats_data.get(_SECONDS, ()):
            self._kvplane_seconds[engine_idx].observe(seconds)

    def _per_engine(self, metric: Any) -> dict[int, Any]:
        return {
            engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()
        }
