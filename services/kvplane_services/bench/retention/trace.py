"""Traces of requests, and which of them continue which."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplane_services.bench.load_engine import BenchError

# Tokens of one block of a trace.
TRACE_BLOCK = 512
# Whole blocks that two requests must share: all begin with the same system prompt.
_FEWEST = 2


@dataclass(slots=True)
class Turn:
    """A request of a trace; times in seconds.

    `parent` is the turn that it continues, of whose context it shares the first `shared` tokens.
    """

    number: int
    at: float
    prompt: int
    reply: int
    conversation: int
    parent: "Turn | None" = None
    shared: int = 0
    final: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of context when it has ended."""
        return self.prompt + self.reply


def read_trace(path: Path) -> list[Turn]:
    """Turns of a trace of the Mooncake project's form, one JSON object a line.

    Raises:
        BenchError: It is not of that form.

    """
    try:
        with path.open() as lines:
            return linked(json.loads(line) for line in lines if line.strip())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path} is no trace: expected lines of JSON with timestamp (ms), input_length, "
            f"output_length and hash_ids ({error!r})"
        ) from error


def linked(requests: Iterable[dict[str, Any]]) -> list[Turn]:
    """Finds out which request continues which.

    One continues the latest other whose whole blocks it begins with, if those are two or more.
    """
    turns: list[Turn] = []
    latest: dict[int, Turn] = {}
    for number, request in enumerate(requests):
        hashes: Sequence[int] = request["hash_ids"]
        turn = Turn(
            number=number,
            at=request["timestamp"] / 1000,
            prompt=int(request["input_length"]),
            reply=int(request["output_length"]),
            conversation=number,
        )
        for end in range(len(hashes), _FEWEST - 1, -1):
            parent = latest.get(hashes[end - 1])
            if parent is not None:
                continue_from(parent, turn)
                break
        whole = turn.prompt // TRACE_BLOCK
        if whole >= _FEWEST:
            latest[hashes[whole - 1]] = turn
        turns.append(turn)
    return turns


def continue_from(parent: Turn, turn: Turn) -> None:
    """Makes a turn the next one of a conversation."""
    turn.parent, turn.conversation = parent, parent.conversation
    # A longer prompt has the reply in it; a shorter one shares the prompt at least.
    turn.shared = min(turn.prompt, parent.tokens if turn.prompt >= parent.tokens else parent.prompt)
    parent.final = False
