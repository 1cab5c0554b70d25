"""What an engine counts about itself, under the names that vLLM's /metrics has."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvplane_services.sim.request import FinishReason, PromptSources

_XFER_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_TTFT_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_DESCRIPTORS = (10, 50, 100, 400, 1000, 4000, 10000, 50000)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is read at each scrape."""

    running: Callable[[], int]
    waiting: Callable[[], int]
    kv_usage: Callable[[], float]


class Counters:
    """The metrics of one engine, in a registry of their own.

    Args:
        model: Served model name, a label of every metric.
        gauges: Where momentary values come from.

    """

    def __init__(self, *, model: str, gauges: Gauges) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._gauge("num_requests_running", "Requests in execution batches.", gauges.running)
        self._gauge("num_requests_waiting", "Requests waiting to be processed.", gauges.waiting)
        self._gauge("kv_cache_usage_perc", "KV-cache usage; 1 means 100 percent.", gauges.kv_usage)
        self._prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self._cached_tokens = self._counter(
            "prompt_tokens_cached", "Cached prompt tokens (local + external)."
        )
        self._generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        self._preemptions = self._counter("num_preemptions", "Preemptions of requests.")
        self._by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by source.",
            [*self._labels, "source"],
            registry=self._registry,
        )
        self._success = Counter(
            "vllm:request_success",
            "Successfully processed requests.",
            [*self._labels, "finished_reason"],
            registry=self._registry,
        )
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            self._by_source.labels(**self._labels, source=source)
        for reason in FinishReason:
            self._success.labels(**self._labels, finished_reason=reason.value)
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Time to first token.", _TTFT_SECONDS
        )
        self._transfer_seconds = self._histogram(
            "nixl_xfer_time_seconds", "Duration of KV transfers.", _XFER_SECONDS
        )
        self._descriptors = self._histogram(
            "nixl_num_descriptors", "Descriptors per KV transfer.", _DESCRIPTORS
        )
        self._failed_transfers = self._counter(
            "nixl_num_failed_transfers", "Failed KV transfers, handshakes and notifications."
        )
        self._expired = self._counter("nixl_num_kv_expired_reqs", "Requests whose KV expired.")
        self._late = self._counter(
            "nixl_num_notifications_after_expiry", "Reads reported after their KV was gone."
        )

    def placed(self, sources: PromptSources) -> None:
        """A prompt's KV is complete; `sources` says where it came from."""
        for source, tokens in (
            ("local_compute", sources.computed),
            ("local_cache_hit", sources.local_cache),
            ("external_kv_transfer", sources.external),
        ):
            self._by_source.labels(**self._labels, source=source).inc(tokens)
        cached = sources.local_cache + sources.external
        self._cached_tokens.inc(cached)
        self._prompt_tokens.inc(sources.computed + cached)

    def generated(self) -> None:
        """One token was generated."""
        self._generation_tokens.inc()

    def first_token(self, seconds: float) -> None:
        """A request got its first token so long after it came."""
        self._first_token.observe(seconds)

    def finished(self, reason: FinishReason) -> None:
        """A request ended."""
        self._success.labels(**self._labels, finished_reason=reason.value).inc()

    def preempted(self) -> None:
        """A running request lost its blocks to others."""
        self._preemptions.inc()

    def transferred(self, *, seconds: float, descriptors: int) -> None:
        """Blocks were read from another engine."""
        self._transfer_seconds.observe(seconds)
        self._descriptors.observe(descriptors)

    def transfer_failed(self) -> None:
        """A read, handshake or notification failed."""
        self._failed_transfers.inc()

    def expired(self) -> None:
        """Retained blocks ran out unread, or a read was declined because they were about to."""
        self._expired.inc()

    def notified_late(self) -> None:
        """Another engine says that it read blocks that are not held any more."""
        self._late.inc()

    def exposition(self) -> bytes:
        """Everything, in the Prometheus text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, list(self._labels), registry=self._registry).labels(
            **self._labels
        )

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"vllm:{name}", about, list(self._labels), registry=self._registry, buckets=buckets
        ).labels(**self._labels)

    def _gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        gauge = Gauge(f"vllm:{name}", about, list(self._labels), registry=self._registry)
        gauge.labels(**self._labels).set_function(read)
