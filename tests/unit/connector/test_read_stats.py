"""Counts of reads on stand-ins for vLLM's, which carry them from workers to /metrics."""

import functools
import json
from collections.abc import Callable
from typing import Any

import prometheus_client
import pytest


@pytest.fixture
def stats(connector: Callable[[str], Any]) -> Any:
    return connector("read_stats").ReadStats()


def test_whatever_is_counted_is_worth_a_report(stats: Any) -> None:
    """vLLM drops what says that it is empty."""
    for count in (
        lambda: stats.record_validation(accepted=True, seconds=1e-5),
        lambda: stats.record_validation(accepted=False, seconds=1e-5),
        stats.record_declined,
        stats.record_late,
        stats.record_kv_expired_req,
        lambda: stats.record_handle("whole", offered=1, tokens=1),
    ):
        assert stats.is_empty()
        count()
        assert not stats.is_empty()
        stats.reset()


def test_the_log_tells_refusals_of_either_kind(stats: Any) -> None:
    """By a word, or by an expiry where there is none."""
    stats.record_validation(accepted=True, seconds=1e-5)
    stats.record_validation(accepted=False, seconds=1e-5)
    stats.record_late()
    stats.record_declined()

    assert stats.reduce() == {
        "Num reads validated": 1,
        "Num reads refused": 2,
        "Num reads declined": 1,
        "Handle tokens offered": 0,
        "Handle tokens readable": 0,
    }


def test_handles_are_counted_by_what_was_found(connector: Callable[[str], Any], stats: Any) -> None:
    """How many tokens they offered, how many of those may be read, and why not more."""
    registry = prometheus_client.CollectorRegistry()
    kinds = [
        functools.partial(kind, registry=registry)
        for kind in (prometheus_client.Counter, prometheus_client.Histogram)
    ]
    metrics = connector("read_stats").ReadMetrics(None, kinds, ["engine"], {0: ["only"]})
    stats.record_handle("whole", offered=1000, tokens=1000)
    stats.record_handle("cut", offered=1000, tokens=640)
    stats.record_handle("unprovable", offered=1000, tokens=0)

    # What comes from another process has lists in the place of tuples.
    metrics.observe(json.loads(json.dumps(stats.data)), 0)

    def found(name: str) -> float | None:
        return registry.get_sample_value(f"vllm:kvplane_{name}_total", {"engine": "only"})

    assert [found(f"handles_{one}") for one in ("whole", "cut", "unprovable")] == [1, 1, 1]
    assert found("handles_different") == 0
    assert (found("handle_tokens_offered"), found("handle_tokens_readable")) == (3000, 1640)
    told = stats.reduce()
    assert (told["Handle tokens offered"], told["Handle tokens readable"]) == (3000, 1640)


def test_metrics_are_kept_for_each_engine(connector: Callable[[str], Any], stats: Any) -> None:
    """What a worker counted ends under the labels of its engine."""
    registry = prometheus_client.CollectorRegistry()
    kinds = [
        functools.partial(kind, registry=registry)
        for kind in (prometheus_client.Counter, prometheus_client.Histogram)
    ]
    metrics = connector("read_stats").ReadMetrics(
        None, kinds, ["engine"], {0: ["first"], 1: ["second"]}
    )
    stats.record_validation(accepted=True, seconds=30e-6)
    stats.record_validation(accepted=True, seconds=90e-6)
    stats.record_validation(accepted=False, seconds=2.0)

    metrics.observe(stats.data, 1)

    def found(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert metrics.observed == [1]
    assert found("vllm:kvplane_reads_accepted_total", engine="second") == 2
    assert found("vllm:kvplane_reads_refused_total", engine="second") == 1
    assert found("vllm:kvplane_reads_accepted_total", engine="first") == 0
    seconds = "vllm:kvplane_validation_seconds"
    assert found(f"{seconds}_bucket", engine="second", le="4e-05") == 1
    assert found(f"{seconds}_count", engine="second") == 3
