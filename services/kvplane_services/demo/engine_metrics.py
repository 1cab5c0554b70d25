"""Where an engine says its prompt tokens came from, read from its own /metrics.

The demo believes engines, not kvplane: `vllm:prompt_tokens_by_source` is counted by vLLM itself.
"""

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_FAMILY = "vllm:prompt_tokens_by_source"


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Prompt tokens of an engine since its start, by where their KV came from."""

    computed: int
    cached: int
    transferred: int

    def since(self, earlier: "PromptTokens") -> "PromptTokens":
        """What was counted after `earlier`."""
        return PromptTokens(
            computed=self.computed - earlier.computed,
            cached=self.cached - earlier.cached,
            transferred=self.transferred - earlier.transferred,
        )


def parse_prompt_tokens(text: str) -> PromptTokens:
    """The counts in a Prometheus exposition; zero where an engine has counted nothing yet."""
    by_source: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"{_FAMILY}_total":
                source = sample.labels.get("source", "")
                by_source[source] = by_source.get(source, 0.0) + sample.value
    return PromptTokens(
        computed=int(by_source.get("local_compute", 0)),
        cached=int(by_source.get("local_cache_hit", 0)),
        transferred=int(by_source.get("external_kv_transfer", 0)),
    )


async def read_prompt_tokens(http: aiohttp.ClientSession, endpoint: str) -> PromptTokens:
    """Asks an engine.

    Raises:
        aiohttp.ClientError: The engine does not answer.

    """
    async with http.get(f"{endpoint}/metrics") as answer:
        answer.raise_for_status()
        return parse_prompt_tokens(await answer.text())
