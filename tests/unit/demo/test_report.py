"""The demo's verdict cannot pass unless reuse happened and was right."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kvplane_services.demo.chat import MeasuredTurn
from kvplane_services.demo.engine_metrics import PromptTokens, parse_prompt_tokens
from kvplane_services.demo.report import ComparedTurn, as_document, as_table, failures


def _measured(prompt: int, *, pulled: int, strategy: str = "pull", text: str = "a") -> MeasuredTurn:
    return MeasuredTurn(
        prompt_tokens=prompt,
        strategy=strategy,
        pulled_tokens=pulled,
        computed_tokens=prompt - pulled,
        ttft_ms=10.0,
        text=text,
    )


def _good() -> list[ComparedTurn]:
    return [
        ComparedTurn(
            1,
            _measured(100, pulled=0, strategy="recompute"),
            _measured(100, pulled=0, strategy="recompute"),
        ),
        ComparedTurn(2, _measured(150, pulled=120), _measured(150, pulled=0, strategy="recompute")),
    ]


def test_good_turns_have_no_failures() -> None:
    """Reuse that is counted by the engine and answers alike is accepted."""
    assert failures(_good()) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"text": "b"}, "differ"),
        ({"text": ""}, "differ"),
        ({"pulled_tokens": 99}, "fewer"),
        ({"strategy": "recompute"}, "not pull"),
        ({"computed_tokens": 150}, "save"),
    ],
)
def test_each_fault_of_the_reusing_turn_is_named(change: dict[str, Any], word: str) -> None:
    """A wrong answer, no pull, another strategy and no saving each fail the demo."""
    turns = _good()
    turns[1] = replace(turns[1], reuse=replace(turns[1].reuse, **change))

    assert any(word in failure for failure in failures(turns))


def test_a_pull_in_the_recomputing_conversation_is_a_failure() -> None:
    """The baseline must not have reused anything."""
    turns = _good()
    turns[1] = replace(turns[1], recompute=replace(turns[1].recompute, pulled_tokens=1))

    assert any("reuse was off" in failure for failure in failures(turns))


def test_the_document_has_the_promised_keys() -> None:
    """The JSON keys are those that the README names."""
    document = as_document(_good(), engine="sim", versions={"kvplane": "0.1.0"})

    assert {"engine", "turns", "versions"} == document.keys()
    assert {
        "turn",
        "prompt_tokens",
        "strategy",
        "pulled_tokens",
        "computed_tokens",
        "ttft_reuse_ms",
        "ttft_recompute_ms",
        "equal",
    } == document["turns"][1].keys()


def test_the_table_fits_eighty_columns() -> None:
    """Nothing of the table is cut in a terminal of the usual width, verdicts included."""
    turns = [
        ComparedTurn(9, _measured(99_999, pulled=88_888), replace(turn.recompute, ttft_ms=99_999.0))
        for turn in _good()
    ]
    written = io.StringIO()

    Console(width=80, file=written).print(as_table(turns))
    printed = written.getvalue()

    for part in ("tokens", "strategy", "pull", "88888", "99999 ms", "answer", "yes"):
        assert part in printed


def test_prompt_tokens_are_summed_over_engines_and_split_by_source() -> None:
    """Counts of several data-parallel ranks add up; other families are ignored."""
    text = (
        "# TYPE vllm:prompt_tokens_by_source counter\n"
        'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 7.0\n'
        'vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 3.0\n'
        'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 5.0\n'
        "# TYPE vllm:prompt_tokens counter\n"
        'vllm:prompt_tokens_total{engine="0"} 99.0\n'
    )

    assert PromptTokens(computed=10, cached=0, transferred=5) == parse_prompt_tokens(text)
