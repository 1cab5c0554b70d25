"""What a run found: how many answers were right, and what was reused, by situation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.truth.situations import Situation


@dataclass(slots=True)
class Figures:
    """Counts of turns, and of the prompt tokens that were reused or computed for them."""

    turns: int = 0
    equal: int = 0
    near_ties: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0

    def add(self, other: "Figures") -> None:
        """Counts another's on top."""
        self.turns += other.turns
        self.equal += other.equal
        self.near_ties += other.near_ties
        self.reused_tokens += other.reused_tokens
        self.recomputed_tokens += other.recomputed_tokens

    def document(self) -> dict[str, int]:
        """For JSON."""
        return {
            "turns": self.turns,
            "equal": self.equal,
            "near_ties": self.near_ties,
            "reused_tokens": self.reused_tokens,
            "recomputed_tokens": self.recomputed_tokens,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the recomputed one, with all that it takes to ask again."""

    turn: int
    situation: Situation
    conversation: int
    strategy: str
    prompt: Sequence[int]
    answer: Sequence[int]
    expected: Sequence[int]

    def __str__(self) -> str:
        """One line."""
        pairs = zip(self.answer, self.expected, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(self.expected))
        return (
            f"turn {self.turn} ({self.situation.value}, {self.strategy}) of conversation "
            f"{self.conversation}: {len(self.prompt)} prompt tokens, the answers differ from "
            f"token {same} on: {list(self.answer)} instead of {list(self.expected)}"
        )

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "turn": self.turn,
            "situation": self.situation.value,
            "conversation": self.conversation,
            "strategy": self.strategy,
            "prompt": list(self.prompt),
            "answer": list(self.answer),
            "expected": list(self.expected),
        }


@dataclass(slots=True)
class Report:
    """The account of a run."""

    figures: dict[Situation, Figures] = field(
        default_factory=lambda: {one: Figures() for one in Situation}
    )
    differences: list[Difference] = field(default_factory=list[Difference])

    @property
    def total(self) -> Figures:
        """Over all situations."""
        total = Figures()
        for one in self.figures.values():
            total.add(one)
        return total

    def spent(self, situation: Situation, *, reused: int, recomputed: int) -> None:
        """Counts what turns cost."""
        self.figures[situation].add(Figures(reused_tokens=reused, recomputed_tokens=recomputed))

    def agreed(self, situation: Situation, *, near_tie: bool) -> None:
        """Counts an answer that is right."""
        self.figures[situation].add(Figures(turns=1, equal=1, near_ties=int(near_tie)))

    def differed(self, difference: Difference) -> None:
        """Counts an answer that is not."""
        self.figures[difference.situation].add(Figures(turns=1))
        self.differences.append(difference)

    def failures(self) -> list[str]:
        """What speaks against the run; empty if nothing does.

        A run in which a situation did not come up, or in which nothing was reused, shows nothing.
        """
        found = [str(one) for one in self.differences]
        missing = [one.value for one, counted in self.figures.items() if not counted.turns]
        if missing:
            found.append(f"not one turn was {', '.join(missing)}: run more turns")
        if not self.figures[Situation.NEXT].reused_tokens:
            found.append("plain next turns reused nothing")
        return found

    def document(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """For JSON, with what else is to be told of the run."""
        return {
            **self.total.document(),
            "by_situation": {one.value: found.document() for one, found in self.figures.items()},
            "differences": [one.document() for one in self.differences],
            **more,
        }
