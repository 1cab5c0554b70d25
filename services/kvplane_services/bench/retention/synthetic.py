"""A trace that nothing was tuned on: agents that wait for tools, people that think, documents."""

import random

from kvplane_services.bench.retention.trace import Turn, continue_from

# Sessions that begin in a second, and for how many seconds.
_RATE = 0.9
_SECONDS = 2400.0
# Seconds that decoding a token takes; a pause begins at the end of a turn.
_PER_TOKEN = 0.02


def synthetic_trace(seed: int) -> list[Turn]:
    """Half agents, with tools that take seconds and a user after some; a third chats; documents."""
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    turns: list[Turn] = []
    begins, conversation = 0.0, 0
    while begins < _SECONDS:
        begins += draw.expovariate(_RATE)
        conversation += 1
        kind = draw.choices(("agent", "chat", "document"), weights=(0.5, 0.33, 0.17))[0]
        turns.extend(_session(kind, conversation, begins, draw))
    turns.sort(key=lambda turn: turn.at)
    for number, turn in enumerate(turns):
        turn.number = number
    return turns


def _session(kind: str, conversation: int, at: float, draw: random.Random) -> list[Turn]:
    prompt = int(draw.lognormvariate({"agent": 9.0, "chat": 7.2, "document": 9.6}[kind], 0.6))
    stays = {"agent": 0.9, "chat": 0.7, "document": 0.15}[kind]
    turns: list[Turn] = []
    while True:
        reply = max(1, int(draw.lognormvariate(4.5 if kind == "agent" else 5.6, 0.7)))
        turn = Turn(0, at, prompt, reply, conversation)
        if turns:
            continue_from(turns[-1], turn)
            turn.conversation = conversation
        turns.append(turn)
        if draw.random() > stays or turn.tokens > 120_000:  # noqa: PLR2004 - a model's context
            return turns
        tool = kind == "agent" and draw.random() < 0.8  # noqa: PLR2004 - the rest asks its user
        pause = draw.lognormvariate(1.4, 1.0) if tool else draw.lognormvariate(4.3, 0.9)
        at += reply * _PER_TOKEN + pause
        prompt = turn.tokens + int(draw.lognormvariate(6.0 if tool else 4.0, 1.0))
