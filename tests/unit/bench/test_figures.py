"""The benchmark's arithmetic."""

import json

import pytest

from kvplane.transfer_params import decode_proof
from kvplane_services.bench.figures import Spread, percentile, rates, rounded
from kvplane_services.bench.workload import Workload, retention_id, session_of


def test_rates_are_taken_over_parts_of_the_same_count() -> None:
    """A phase that slows down shows as its slowest and fastest parts."""
    fast = [(count / 100, count) for count in range(10, 501, 10)]
    slow = [(5 + count / 10, 500 + count) for count in range(10, 501, 10)]
    found = rates([*fast, *slow], began=0.0, before=0)
    assert found.low == pytest.approx(10)
    assert found.high == pytest.approx(100)
    assert found.count == 10


def test_one_answer_makes_one_rate() -> None:
    """What came all at once has a rate all the same."""
    assert rates([(2.0, 30)], began=1.0, before=10).median == 20


def test_percentiles_are_measured_values() -> None:
    """The 99th percentile of a hundred values is the second largest."""
    assert percentile([float(value) for value in range(100)], 0.99) == 98
    assert percentile([7.0], 0.5) == 7


def test_a_spread_names_median_and_ends() -> None:
    """Of three values the middle one is the median."""
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)


def test_figures_have_four_digits() -> None:
    """More would pretend."""
    assert rounded(123456.0) == 123500
    assert rounded(0.0123456) == 0.01235


def test_a_handle_is_as_the_connector_writes_it() -> None:
    """Its parameters carry the proof for as many tokens, and no two sessions' are alike."""
    workload = Workload(tokens=2048)
    one, other = workload.retention(1, 0), workload.retention(2, 0)
    assert one.handle.kv_transfer_params != other.handle.kv_transfer_params

    proof = decode_proof(json.loads(one.handle.kv_transfer_params))
    assert proof is not None
    assert proof.tokens == 2048
    assert proof.digests == tuple(one.handle.digests.digests)
    assert one.blocks == 128


def test_a_retentions_name_tells_its_session_and_turn() -> None:
    """Engines make a retention again from its name alone."""
    assert session_of(retention_id(70_000, 12)) == (70_000, 12)
