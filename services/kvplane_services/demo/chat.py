"""One conversation through the gateway, with the ordinary `openai` client, measured by turns."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from openai import AsyncOpenAI

from kvplane_services.clock import Clock
from kvplane_services.demo.engine_metrics import read_prompt_tokens
from kvplane_services.demo.script import MODEL, SYSTEM
from kvplane_services.router.model import Strategy

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """What one turn cost; `pulled_tokens` and `computed_tokens` as the prefill engine counted."""

    prompt_tokens: int
    strategy: str
    pulled_tokens: int
    computed_tokens: int
    ttft_ms: float
    text: str


class Chat:
    """A conversation whose every turn is forced to one strategy.

    Args:
        openai: Client whose base URL is the gateway's.
        http: Session to read engine metrics with.
        prefill_endpoint: Base URL of the only prefill engine; nothing else may use it meanwhile.
        clock: Times first tokens.
        session_id: Names the conversation. Its `cache_salt` too, so that conversations share no
            cached prefix on any engine and are measured alike.
        strategy: What to force, from the second turn on; the first has nothing to reuse.

    """

    def __init__(
        self,
        *,
        openai: AsyncOpenAI,
        http: aiohttp.ClientSession,
        prefill_endpoint: str,
        clock: Clock,
        session_id: str,
        strategy: Strategy,
    ) -> None:
        self._openai = openai
        self._http = http
        self._prefill_endpoint = prefill_endpoint
        self._clock = clock
        self._session_id = session_id
        self._strategy = strategy
        self._messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM}]

    async def ask(self, question: str, *, max_tokens: int) -> MeasuredTurn:
        """Runs one turn, streaming, greedy, and keeps its answer as history.

        Raises:
            openai.APIError: The gateway refused the turn or broke off.

        """
        first = len(self._messages) == 1
        strategy = Strategy.RECOMPUTE if first else self._strategy
        self._messages.append({"role": "user", "content": question})
        before = await read_prompt_tokens(self._http, self._prefill_endpoint)
        started = self._clock.now()
        ttft_ms = 0.0
        text = ""
        prompt_tokens = 0
        raw = await self._openai.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=self._messages,
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={
                "x-session-id": self._session_id,
                "x-kvplane-strategy": strategy.value,
            },
            extra_body={"cache_salt": self._session_id},
        )
        async for chunk in raw.parse():
            if chunk.usage is not None:
                prompt_tokens = chunk.usage.prompt_tokens
            for choice in chunk.choices:
                if choice.delta.content:
                    if not text:
                        ttft_ms = (self._clock.now() - started) * 1e3
                    text += choice.delta.content
        spent = (await read_prompt_tokens(self._http, self._prefill_endpoint)).since(before)
        self._messages.append({"role": "assistant", "content": text})
        return MeasuredTurn(
            prompt_tokens=prompt_tokens,
            strategy=raw.headers.get("x-kvplane-strategy", "unknown"),
            pulled_tokens=spent.transferred,
            computed_tokens=spent.computed,
            ttft_ms=ttft_ms,
            text=text,
        )
