"""The demo itself: two conversations with the same words, one reusing, one recomputing."""

import aiohttp
from openai import AsyncOpenAI

from kvplane_services.clock import Clock
from kvplane_services.demo.chat import Chat
from kvplane_services.demo.report import ComparedTurn
from kvplane_services.demo.script import QUESTIONS
from kvplane_services.local.errand import Progress
from kvplane_services.router.model import Strategy

_ANSWER_TOKENS = 48
_WARM_UP_TOKENS = 4


async def play(
    *, gateway: str, prefill_endpoint: str, run: str, say: Progress, clock: Clock
) -> list[ComparedTurn]:
    """Holds both conversations, turn by turn side by side, so that both meet the same machine.

    A short conversation goes before them: the first transfer between two engines pays for their
    handshake, which is not what is measured.

    Args:
        gateway: Base URL of the gateway.
        prefill_endpoint: Base URL of the only prefill engine, whose counts are read.
        run: Part of the sessions' ids that tells this run from others at the same plane.
        say: Called with a line for people after each turn.
        clock: Times first tokens.

    Raises:
        openai.APIError: A turn failed.

    """
    async with (
        AsyncOpenAI(base_url=f"{gateway}/v1", api_key="demo", max_retries=0) as openai,
        aiohttp.ClientSession() as http,
    ):

        def chat(name: str, strategy: Strategy) -> Chat:
            return Chat(
                openai=openai,
                http=http,
                prefill_endpoint=prefill_endpoint,
                clock=clock,
                session_id=f"demo-{run}-{name}",
                strategy=strategy,
            )

        say("warming up: one short conversation, not measured")
        warm_up = chat("warm-up", Strategy.PULL)
        for question in QUESTIONS[:2]:
            await warm_up.ask(question, max_tokens=_WARM_UP_TOKENS)

        reuse = chat("reuse", Strategy.PULL)
        recompute = chat("recompute", Strategy.RECOMPUTE)
        turns: list[ComparedTurn] = []
        for number, question in enumerate(QUESTIONS, start=1):
            turn = ComparedTurn(
                number,
                await reuse.ask(question, max_tokens=_ANSWER_TOKENS),
                await recompute.ask(question, max_tokens=_ANSWER_TOKENS),
            )
            turns.append(turn)
            say(
                f"turn {number} of {len(QUESTIONS)}: {turn.reuse.prompt_tokens} prompt tokens, "
                f"first token after {turn.reuse.ttft_ms:.0f} ms with {turn.reuse.strategy}, "
                f"{turn.recompute.ttft_ms:.0f} ms with recompute"
            )
        return turns
