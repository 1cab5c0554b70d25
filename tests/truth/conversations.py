"""What is said in a conversation, and what its client does to its history. Pure but for the dice.

One character is one token of the model: a conversation starts with some 300 tokens and is
shortened when it has grown to three times that, as agents do.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.vllm_engines import Messages

# Longer histories are shortened by their client.
LONGEST = 900
_SYSTEM_WORDS = 40
_QUESTION_WORDS = (3, 8)
_VOCABULARY = (
    "block build cache change check commit engine error fault file heap host index journal lag "
    "leader lease limit line lock log memory node page patch pool queue read replica retry seed "
    "shard stack step store table test thread token trace turn write"
)
_WORDS = _VOCABULARY.split()
# The same for all: what conversations share at the front, engines may share too.
_RULES = (
    "You answer in one line, and you name the file and the line that a fault comes from. If a log "
    "does not show the cause, you ask for the log that would. "
)


@dataclass(slots=True)
class Conversation:
    """A session, and its messages so far; they end with an answer, or are the system prompt.

    Attributes:
        number: For people.
        session_id: Named to the gateway; empty for a client that names none.
        known_as: The plane's name of the session that its last turn was served as.
        messages: The history.
        turns: How many turns it had.
        unsettled: Whether an engine was restarted since its last turn.

    """

    number: int
    session_id: str
    messages: Messages
    known_as: str = ""
    turns: int = 0
    unsettled: bool = field(default=False)

    @property
    def exchanges(self) -> int:
        """Questions with an answer."""
        return (len(self.messages) - 1) // 2

    @property
    def is_long(self) -> bool:
        """Whether it is time to shorten it."""
        return sum(len(one["content"]) for one in self.messages) > LONGEST

    def answered(self, messages: Messages, answer: str) -> None:
        """Goes on from `messages`, which were answered."""
        self.messages = [*messages, {"role": "assistant", "content": answer}]


def opened(number: int, dice: random.Random) -> Conversation:
    """A new one; its rules are everybody's, its task is its own. One in three names no session."""
    task = f"Case {number}: {_words(dice, _SYSTEM_WORDS)}."
    # Of the dice too: which sessions there are is part of what a seed repeats.
    name = f"truth-{uuid.UUID(int=dice.getrandbits(128)).hex[:12]}"
    session_id = dice.choice([name, name, ""])
    return Conversation(number, session_id, [{"role": "system", "content": _RULES + task}])


def asked(messages: Messages, dice: random.Random) -> Messages:
    """The history with one more question."""
    return [*messages, {"role": "user", "content": _words(dice, dice.randint(*_QUESTION_WORDS))}]


def edited(messages: Messages, dice: random.Random) -> Messages:
    """The history with one character changed, anywhere, in what either side said."""
    told = [index for index, one in enumerate(messages) if one["content"]]
    index = dice.choice(told)
    text = messages[index]["content"]
    at = dice.randrange(len(text))
    new = dice.choice([letter for letter in "#+=%" if letter != text[at]])
    return _with_content(messages, index, text[:at] + new + text[at + 1 :])


def truncated(messages: Messages, dice: random.Random) -> Messages:
    """The history without its oldest exchanges, or without the end of an answer."""
    exchanges = (len(messages) - 1) // 2
    if exchanges > 1 and dice.random() < 0.6:
        return [messages[0], *messages[1 + 2 * dice.randint(1, exchanges - 1) :]]
    answers = [i for i, one in enumerate(messages) if one["role"] == "assistant"]
    if not answers:
        return list(messages)
    index = dice.choice(answers)
    text = messages[index]["content"]
    return _with_content(messages, index, text[: dice.randrange(max(1, len(text)))])


def shortened(messages: Messages) -> Messages:
    """The system prompt and the last exchange: what an agent keeps when its history is full."""
    return [messages[0], *messages[-2:]]


def rewound(messages: Messages, dice: random.Random) -> Messages:
    """The history as it was some exchanges ago."""
    exchanges = (len(messages) - 1) // 2
    return messages[: 1 + 2 * dice.randint(0, max(0, exchanges - 1))]


def _words(dice: random.Random, count: int, words: Sequence[str] = _WORDS) -> str:
    return " ".join(dice.choice(words) for _ in range(count))


def _with_content(messages: Messages, index: int, content: str) -> Messages:
    changed = list(messages)
    changed[index] = {**messages[index], "content": content}
    return changed
