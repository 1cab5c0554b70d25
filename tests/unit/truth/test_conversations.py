import random

import pytest

from tests.truth.conversations import (
    asked,
    edited,
    opened,
    rewound,
    shortened,
    truncated,
)
from tests.truth.situations import Deck, Situation


@pytest.fixture(params=range(20))
def dice(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


def history(dice: random.Random, exchanges: int) -> list[dict[str, str]]:
    conversation = opened(1, dice)
    for number in range(exchanges):
        conversation.answered(asked(conversation.messages, dice), f"answer {number}")
    return conversation.messages


def roles(messages: list[dict[str, str]]) -> list[str]:
    return [one["role"] for one in messages]


def test_an_edit_changes_one_character(dice: random.Random) -> None:
    """Lengths stay, and so does what was given."""
    messages = history(dice, 3)
    before = [dict(one) for one in messages]

    changed = edited(messages, dice)

    pairs = [
        (a, b)
        for one, other in zip(messages, changed, strict=True)
        for a, b in zip(one["content"], other["content"], strict=True)
    ]
    assert sum(a != b for a, b in pairs) == 1
    assert messages == before


@pytest.mark.parametrize("exchanges", [1, 2, 5])
def test_histories_stay_conversations(dice: random.Random, exchanges: int) -> None:
    """Whatever is left out, a system prompt is followed by questions with their answers."""
    messages = history(dice, exchanges)

    for changed in (truncated(messages, dice), rewound(messages, dice), shortened(messages)):
        assert changed != messages or exchanges == 1
        assert roles(changed) == ["system"] + ["user", "assistant"] * ((len(changed) - 1) // 2)


def test_every_situation_is_dealt_before_any_pack_again(dice: random.Random) -> None:
    """But restarts, which are not dealt."""
    deck = Deck(dice)
    pack = [deck.deal() for _ in range(27)]
    again = [deck.deal() for _ in range(27)]

    assert set(pack) == set(Situation) - {Situation.RESTARTED}
    assert sorted(one.value for one in pack) == sorted(one.value for one in again)
