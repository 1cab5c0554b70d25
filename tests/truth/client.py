"""A client of the gateway that keeps the token ids of what it gets."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support.vllm_engines import MODEL, Messages


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, the tokens that the engine made it of, and how the turn was served."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    strategy: str
    session: str


class GatewayClient:
    """Asks the gateway, greedy.

    Args:
        http: Session to ask with.
        url: Base URL of the gateway.

    """

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def ask(
        self,
        messages: Messages,
        *,
        session_id: str,
        max_tokens: int,
        stream: bool,
        strategy: str = "auto",
    ) -> Answer:
        """One turn.

        Args:
            messages: All of them.
            session_id: Empty for none.
            max_tokens: Length of the answer, exactly.
            stream: Whether the answer comes in pieces.
            strategy: `auto`, or one to force.

        Raises:
            aiohttp.ClientError: The gateway refused the turn or broke off.

        """
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": stream,
        }
        headers = {"x-kvplane-strategy": strategy}
        if session_id:
            headers["x-session-id"] = session_id
        async with self._http.post(
            f"{self._url}/v1/chat/completions", json=body, headers=headers
        ) as answered:
            raw = await answered.read()
            if not answered.ok:
                raise aiohttp.ClientError(f"{answered.status}: {raw[:500].decode()}")
            strategy, session = (
                answered.headers[f"x-kvplane-{name}"] for name in ("strategy", "session")
            )
        parts = list(_events(raw)) if stream else [json.loads(raw)]
        choices = [choice for part in parts for choice in part["choices"]]
        said = [choice["delta" if stream else "message"] for choice in choices]
        return Answer(
            prompt=tuple(parts[0]["prompt_token_ids"]),
            tokens=tuple(token for choice in choices for token in choice.get("token_ids") or ()),
            text="".join(one.get("content") or "" for one in said),
            strategy=strategy,
            session=session,
        )


def _events(raw: bytes) -> Iterator[dict[str, Any]]:
    for line in raw.splitlines():
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise aiohttp.ClientError(f"the stream broke off: {event['error']}")
            yield event
