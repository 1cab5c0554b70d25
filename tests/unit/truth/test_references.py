from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.truth.references import ROUNDING, References, Tokens

PROMPT = (1, 2, 3)


@dataclass
class FakeEngine:
    """Answers as told, by prompt."""

    answers: dict[Tokens, Tokens]
    likely: dict[Tokens, Mapping[int, float]] = field(default_factory=dict)
    asked: int = 0

    async def answer(self, prompt: Tokens, length: int) -> Tokens:
        self.asked += 1
        return self.answers[prompt][:length]

    async def likely_after(self, prompt: Tokens) -> Mapping[int, float]:
        return self.likely[prompt]


async def test_the_recomputed_answer_is_equal() -> None:
    """Equal tokens are equal, and are recomputed once."""
    engine = FakeEngine({PROMPT: (7, 8, 9)})
    references = References(engine)

    verdicts = [await references.judge(PROMPT, [7, 8, 9]) for _ in range(2)]

    assert [(one.equal, one.near_tie) for one in verdicts] == [(True, False)] * 2
    assert engine.asked == 1


async def test_another_token_is_a_difference() -> None:
    """A token that is less likely than rounding explains is wrong."""
    likely = {8: -0.7, 5: -0.7 - 2 * ROUNDING}
    engine = FakeEngine({PROMPT: (7, 8, 9)}, {(*PROMPT, 7): likely})

    verdict = await References(engine).judge(PROMPT, [7, 5, 9])

    assert not verdict.equal
    assert verdict.expected == (7, 8, 9)


async def test_a_token_that_is_not_among_the_likely_is_a_difference() -> None:
    """What the engine does not even name is wrong."""
    engine = FakeEngine({PROMPT: (7, 8, 9)}, {PROMPT: {7: -0.7, 6: -0.8}})

    assert not (await References(engine).judge(PROMPT, [5, 8, 9])).equal


async def test_a_near_tie_counts_with_what_follows_it() -> None:
    """Two tokens within rounding are as good, if the rest is what follows the one taken."""
    likely = {8: -0.7, 5: -0.7 - ROUNDING / 2}
    engine = FakeEngine({PROMPT: (7, 8, 9), (*PROMPT, 7, 5): (4,)}, {(*PROMPT, 7): likely})

    tied = await References(engine).judge(PROMPT, [7, 5, 4])

    assert (tied.equal, tied.near_tie) == (True, True)


async def test_a_near_tie_excuses_nothing_after_it() -> None:
    """What follows the token that was taken is compared as strictly."""
    likely = {8: -0.7, 5: -0.7}
    after = {4: -0.1, 9: -2.0}
    engine = FakeEngine(
        {PROMPT: (7, 8, 9), (*PROMPT, 7, 5): (4,)},
        {(*PROMPT, 7): likely, (*PROMPT, 7, 5): after},
    )

    assert not (await References(engine).judge(PROMPT, [7, 5, 9])).equal
