"""Conversations that are held at once, and how long each of their turns took."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from openai import OpenAI

from kvplane_services.clock import SystemClock
from tests.support.vllm_engines import MODEL, Messages


@dataclass(frozen=True, slots=True)
class Turn:
    """What was sent, what came back, by which strategy, and after how many seconds."""

    messages: Messages
    text: str
    strategy: str
    seconds: float


def hold(
    url: str, *, systems: tuple[str, ...], questions: tuple[str, ...], max_tokens: int
) -> list[Turn]:
    """Holds one conversation for each system prompt, all at once; returns their turns.

    A turn that takes longer than two minutes raises.
    """

    def converse(number: int) -> list[Turn]:
        turns: list[Turn] = []
        session = f"crowd-{uuid.uuid4().hex[:12]}"
        messages: Messages = [{"role": "system", "content": systems[number]}]
        with OpenAI(base_url=f"{url}/v1", api_key="sk-e2e", max_retries=0, timeout=120) as client:
            for question in questions:
                messages.append({"role": "user", "content": question})
                turn = _ask(client, session, messages, max_tokens)
                turns.append(turn)
                messages.append({"role": "assistant", "content": turn.text})
        return turns

    with ThreadPoolExecutor(len(systems)) as pool:
        return [turn for turns in pool.map(converse, range(len(systems))) for turn in turns]


def _ask(client: OpenAI, session: str, messages: Messages, max_tokens: int) -> Turn:
    clock = SystemClock()
    began = clock.now()
    answer = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=cast("Any", messages),
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        extra_headers={"x-session-id": session},
    )
    with answer.parse() as chunks:
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    return Turn(
        messages=list(messages),
        text=text,
        strategy=answer.headers["x-kvplane-strategy"],
        seconds=clock.now() - began,
    )
