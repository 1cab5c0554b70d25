"""What the demo shows at the end: a table, a JSON document, and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from kvplane_services.demo.chat import MeasuredTurn


@dataclass(frozen=True, slots=True)
class ComparedTurn:
    """The same turn of both conversations; `turn` counts from 1."""

    turn: int
    reuse: MeasuredTurn
    recompute: MeasuredTurn

    @property
    def equal(self) -> bool:
        """Whether both gave the same answer, and gave one."""
        return bool(self.reuse.text) and self.reuse.text == self.recompute.text


def failures(turns: Sequence[ComparedTurn]) -> list[str]:
    """What speaks against reuse having happened and having been right; empty if nothing does.

    A later turn must have pulled at least the prompt of the turn before, as the prefill engine
    counted, and the recomputing conversation must have pulled nothing.
    """
    found: list[str] = []
    for before, turn in zip((None, *turns), turns, strict=False):
        if not turn.equal:
            found.append(f"turn {turn.turn}: the answers differ")
        if turn.recompute.pulled_tokens:
            found.append(f"turn {turn.turn}: tokens were pulled although reuse was off")
        if before is None:
            continue
        if turn.reuse.strategy != "pull":
            found.append(f"turn {turn.turn}: strategy was {turn.reuse.strategy}, not pull")
        if turn.reuse.pulled_tokens < before.reuse.prompt_tokens:
            found.append(
                f"turn {turn.turn}: the prefill engine pulled {turn.reuse.pulled_tokens} tokens, "
                f"fewer than the {before.reuse.prompt_tokens} of the turn before"
            )
        if turn.recompute.computed_tokens <= turn.reuse.computed_tokens:
            found.append(f"turn {turn.turn}: reuse did not save the prefill engine any token")
    return found


def as_table(turns: Sequence[ComparedTurn]) -> Table:
    """The table for people."""
    # Fits 80 columns, as wide as most terminals and CI logs are.
    table = Table(title="Five turns, streamed, greedy", show_edge=False)
    for heading in (
        "turn",
        "prompt\ntokens",
        "strategy",
        "pulled\n(decode)",
        "computed\n(prefill)",
        "TTFT\nreuse",
        "TTFT\nwithout",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("same\nanswer", no_wrap=True)
    for turn in turns:
        table.add_row(
            str(turn.turn),
            str(turn.reuse.prompt_tokens),
            turn.reuse.strategy,
            str(turn.reuse.pulled_tokens),
            str(turn.reuse.computed_tokens),
            f"{turn.reuse.ttft_ms:.0f} ms",
            f"{turn.recompute.ttft_ms:.0f} ms",
            "yes" if turn.equal else "NO",
        )
    return table


def as_document(
    turns: Sequence[ComparedTurn], *, engine: str, versions: Mapping[str, str]
) -> dict[str, Any]:
    """The document that `--json` writes."""
    return {
        "engine": engine,
        "turns": [
            {
                "turn": turn.turn,
                "prompt_tokens": turn.reuse.prompt_tokens,
                "strategy": turn.reuse.strategy,
                "pulled_tokens": turn.reuse.pulled_tokens,
                "computed_tokens": turn.reuse.computed_tokens,
                "ttft_reuse_ms": round(turn.reuse.ttft_ms, 1),
                "ttft_recompute_ms": round(turn.recompute.ttft_ms, 1),
                "equal": turn.equal,
            }
            for turn in turns
        ],
        "versions": dict(versions),
    }
