"""What engines answer that reuse nothing, and whether an answer is that.

The prefill engine is asked for it, which has no prefix cache in these runs, by a request without
transfer parameters: it reads from nobody and computes every token.

Equal means equal tokens, with one exception. Engines add up floats in the order that the
chunks and batches of a step give, so that two tokens whose logits lie within that rounding may
change places. Such a *near tie* is told from a fault by the recomputed probabilities: the two
tokens must lie within `ROUNDING` of each other, and the rest of the answer must be what is
recomputed after the token that was taken. It counts as equal, and is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from tests.support.vllm_engines import MODEL

# Natural logarithm of a probability. Reuse in float32 moves one by some 1e-5; a prompt with wrong
# KV in it by more than 1e-2.
ROUNDING = 2e-4

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is the recomputed one, which it should have been."""

    equal: bool
    near_tie: bool
    expected: Tokens


class Recomputing(Protocol):
    """An engine that is asked without any reuse."""

    async def answer(self, prompt: Tokens, length: int) -> Tokens:
        """The greedy answer of that length."""
        ...

    async def likely_after(self, prompt: Tokens) -> Mapping[int, float]:
        """The likeliest next tokens, and the logarithms of their probabilities."""
        ...


class References:
    """Recomputed answers, each computed once.

    Args:
        engine: Who recomputes.

    """

    def __init__(self, engine: Recomputing) -> None:
        self._engine = engine
        self._known: dict[tuple[Tokens, int], Tokens] = {}

    async def judge(self, prompt: Sequence[int], answer: Sequence[int]) -> Verdict:
        """Compares an answer, which was cut at its length, with the recomputed one."""
        given = tuple(answer)
        expected = await self._recomputed(tuple(prompt), len(given))
        if given == expected:
            return Verdict(equal=True, near_tie=False, expected=expected)
        tied = await self._is_near_tie(tuple(prompt), given, expected)
        return Verdict(equal=tied, near_tie=tied, expected=expected)

    async def _is_near_tie(self, prompt: Tokens, given: Tokens, expected: Tokens) -> bool:
        pairs = zip(given, expected, strict=True)
        at = next(index for index, (one, other) in enumerate(pairs) if one != other)
        likely = await self._engine.likely_after(prompt + given[:at])
        if likely.get(given[at], float("-inf")) < max(likely.values()) - ROUNDING:
            return False
        rest = given[at + 1 :]
        return not rest or (await self.judge(prompt + given[: at + 1], rest)).equal

    async def _recomputed(self, prompt: Tokens, length: int) -> Tokens:
        found = self._known.get((prompt, length))
        if found is None:
            found = self._known[prompt, length] = await self._engine.answer(prompt, length)
        return found


class RecomputingEngine:
    """The prefill engine of a run.

    Args:
        http: Session to ask with.
        url: Its base URL.

    """

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def answer(self, prompt: Tokens, length: int) -> Tokens:
        """See `Recomputing.answer`."""
        return tuple((await self._complete(prompt, max_tokens=length))["token_ids"])

    async def likely_after(self, prompt: Tokens) -> Mapping[int, float]:
        """See `Recomputing.likely_after`."""
        choice = await self._complete(
            prompt, max_tokens=1, logprobs=3, return_tokens_as_token_ids=True
        )
        (likely,) = choice["logprobs"]["top_logprobs"]
        return {int(name.removeprefix("token_id:")): value for name, value in likely.items()}

    async def _complete(self, prompt: Tokens, **body: object) -> dict[str, Any]:
        asked = {
            "model": MODEL,
            "prompt": list(prompt),
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **body,
        }
        async with self._http.post(f"{self._url}/v1/completions", json=asked) as answer:
            answer.raise_for_status()
            (choice,) = (await answer.json())["choices"]
            return dict(choice)
