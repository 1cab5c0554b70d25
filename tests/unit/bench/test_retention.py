"""The simulation of what engines keep, on small traces."""

import json
from pathlib import Path

import pytest

from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.retention.command import run_retention
from kvplane_services.bench.retention.rules import ByWorth, LeastRecent, Rule
from kvplane_services.bench.retention.simulation import Outcome, Setting, Simulation, prefill_hits
from kvplane_services.bench.retention.study import StudyOptions, hints_of, run_study
from kvplane_services.bench.retention.synthetic import synthetic_trace
from kvplane_services.bench.retention.trace import Turn, continue_from, linked, read_trace
from kvplane_services.lease.return_kinds import Hint
from kvplane_services.lease.worth import RecomputeCost

COST = RecomputeCost()


def request(at: float, tokens: int, hashes: list[int]) -> dict[str, object]:
    return {
        "timestamp": at * 1000,
        "input_length": tokens,
        "output_length": 10,
        "hash_ids": hashes,
    }


def chat(pauses: list[float], *, start: float = 0.0, first: int = 0) -> list[Turn]:
    """A conversation of 1,000 tokens a turn."""
    turns = [Turn(first, start, 990, 10, first)]
    for pause in pauses:
        last = turns[-1]
        turn = Turn(last.number + 1, last.at + 0.2 + pause, last.tokens + 990, 10, first)
        continue_from(last, turn)
        turns.append(turn)
    return turns


def run(turns: list[Turn], rule: Rule, capacity: int, **setting: float) -> Outcome:
    ordered = sorted(turns, key=lambda turn: turn.at)
    hits = [0] * (1 + max(turn.number for turn in turns))
    made = Setting(capacity=capacity, engines=1, budget=setting.get("budget", 1.0))
    return Simulation(ordered, rule, made, cost=COST, prefill_hits=hits).run()


def test_a_request_continues_the_one_whose_blocks_it_begins_with() -> None:
    """A common first block is no history, and half a block at the end may change."""
    turns = linked(
        [
            request(0, 1200, [0, 1, 2]),
            request(5, 1200, [0, 3, 4]),
            request(9, 2000, [0, 1, 5, 6]),
        ]
    )

    assert [turn.parent and turn.parent.number for turn in turns] == [None, None, 0]
    assert (turns[2].shared, turns[0].final, turns[1].final) == (1210, False, True)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    """With what was expected."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp": 1}\n')

    with pytest.raises(BenchError, match="hash_ids"):
        read_trace(bad)


def test_what_is_kept_is_found_again() -> None:
    """With room for all; a rule that keeps nothing saves nothing, and nobody waits."""
    turns = chat([30.0, 30.0])
    kept, none = run(turns, LeastRecent({}), 10_000), run(turns, Rule(), 10_000)

    assert (kept.reused, none.reused) == (3000, 0)
    assert kept.saved == COST.of(1000) + COST.of(2000)
    assert kept.waits == none.waits == [0.0] * 3


def test_retentions_make_room_at_once() -> None:
    """A request that needs what retentions take does not wait for them."""
    turns = [*chat([]), *chat([], start=10.0, first=1), *chat([], start=20.0, first=2)]

    assert run(turns, LeastRecent({}), 2000).waits == [0.0] * 3
    assert run(turns, ByWorth(COST, {}), 2000).waits == [0.0] * 3


def test_requests_wait_for_each_other() -> None:
    """Memory of requests that run cannot be given up."""
    turns = [*chat([]), *chat([], start=0.1, first=1)]

    assert run(turns, LeastRecent({}), 1500).waits == pytest.approx([0.0, 0.1])


def test_the_budget_bounds_what_is_kept() -> None:
    """Also where memory is free."""
    turns = chat([30.0])

    assert run(turns, ByWorth(COST, {}), 10_000, budget=0.05).reused == 0
    assert run(turns, ByWorth(COST, {}), 10_000, budget=0.2).reused == 1000


def test_a_wrong_end_only_ranks_last() -> None:
    """What was said to be over is found again where memory is free."""
    turns = chat([30.0])

    assert run(turns, ByWorth(COST, {0: Hint.FINAL}), 10_000).reused == 1000


def test_two_forks_of_one_retention_both_read_it() -> None:
    """And it is freed once."""
    turns = chat([30.0])
    fork = Turn(2, turns[1].at + 0.1, 1990, 10, 0)
    continue_from(turns[0], fork)

    assert run([*turns, fork], LeastRecent({}), 10_000).reused == 2000


def test_the_prefill_side_has_a_cache_of_its_own() -> None:
    """Of prompts, not of replies; the oldest goes where it is too small."""
    turns = chat([30.0, 30.0])

    assert prefill_hits(turns, 10_000) == [0, 990, 1990]
    assert prefill_hits(turns, 500) == [0, 0, 0]


def test_hints_say_what_follows() -> None:
    """Of a part of the conversations, and wrongly of a part of their turns."""
    turns = synthetic_trace(1)[:500]

    right = hints_of(turns, 1.0, wrong=0.0)
    assert {number: hint is Hint.FINAL for number, hint in right.items()} == {
        turn.number: turn.final for turn in turns
    }
    assert hints_of(turns, 0.0, wrong=0.0) == {}
    assert set(hints_of(turns, 1.0, wrong=1.0).values()) == {Hint.FINAL}


def test_a_synthetic_trace_is_the_same_for_a_seed() -> None:
    """Numbered in the order of time; turns of a conversation follow each other."""
    one, other = synthetic_trace(3), synthetic_trace(3)

    assert one == other
    assert [turn.number for turn in one] == list(range(len(one)))
    assert all(turn.parent is None or turn.parent.at < turn.at for turn in one)


def mixed(seconds: int) -> list[Turn]:
    """Documents that nobody comes back to every 2 s, a chat that pauses for a minute every 5 s."""
    turns: list[Turn] = []
    for second in range(seconds):
        if second % 2 == 0:
            turns.append(Turn(len(turns), second + 0.5, 17_000, 10, len(turns)))
        if second % 5 == 0:
            turns.extend(chat([60.0, 60.0], start=float(second), first=len(turns)))
    return turns


def test_kvplane_saves_more_than_the_latest_used_without_anybody_waiting() -> None:
    """Where memory is tight, and kinds return differently."""
    turns = mixed(600)
    by_worth, latest = (run(turns, rule, 150_000) for rule in (ByWorth(COST, {}), LeastRecent({})))

    assert by_worth.saved > 2 * latest.saved
    assert max(by_worth.waits) == 0


def test_a_study_says_how_each_rule_did() -> None:
    """Next to a rule that keeps nothing; hints that are right save more."""
    said: list[str] = []
    document = run_study(mixed(300), StudyOptions(capacities=[5], hints=1.0), say=said.append)
    runs = {one["rule"]: one for one in document["runs"]}

    assert len(said) == len(runs) == 7
    assert runs["nothing"]["saved_percent"] == 0
    assert runs["LRU, hints"]["saved_percent"] > runs["LRU"]["saved_percent"]
    assert runs["kvplane"]["makespan_ratio"] == 1.0


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    """And fails where a turn does not fit into an engine."""
    trace, found = tmp_path / "trace.jsonl", tmp_path / "found.json"
    requests = [request(0, 1200, [0, 1, 2]), request(9, 2000, [0, 1, 5, 6])]
    trace.write_text("".join(json.dumps(one) + "\n" for one in requests))
    roomy = StudyOptions(capacities=[1000])

    assert run_retention(roomy, trace=trace, seed=0, json_file=found) == 0
    saved = {one["rule"]: one["saved_percent"] for one in json.loads(found.read_text())["runs"]}
    assert saved["kvplane"] == 100
    tight = StudyOptions(capacities=[1])
    assert run_retention(tight, trace=trace, seed=0, json_file=None) == 1
