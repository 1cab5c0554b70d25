"""The scheduler's half on a stand-in for vLLM's: what it offers of a handle, and counts of it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane.digest import CHUNK_TOKENS, Medium, chain_of, context_of
from kvplane.transfer_params import KEY, encode_proof
from kvplane_connector.retentions import RetentionLedger
from tests.unit.connector.conftest import new_scheduler

TOKENS = [*range(4 * CHUNK_TOKENS)]
CAT = Medium(2 * CHUNK_TOKENS + 3, 40, "cat")


@pytest.fixture
def scheduler(connector: Callable[[str], Any]) -> Any:
    return new_scheduler(connector, RetentionLedger(ttl=20.0, clamp_ttl=lambda ttl: ttl))


def image(medium: Medium, identifier: str = "") -> Any:
    place = SimpleNamespace(offset=medium.offset, length=medium.length)
    return SimpleNamespace(identifier=identifier or medium.identifier, mm_position=place)


def leg(**changed: Any) -> Any:
    """A prefill leg whose handle says that its blocks hold `TOKENS`, one image among them."""
    params = {
        "do_remote_decode": True,
        "remote_block_ids": [[7, 8]],
        "remote_num_tokens": len(TOKENS),
        "remote_blocks_expiry_time": 0.0,
        KEY: {**encode_proof(chain_of(TOKENS, context_of(), (CAT,))), "block_size": 128},
    }
    return SimpleNamespace(
        **{
            "request_id": "r",
            "kv_transfer_params": params,
            "prompt_token_ids": [*TOKENS, 1, 2, 3],
            "lora_request": None,
            "cache_salt": None,
            "mm_features": [image(CAT)],
        }
        | changed
    )


def offered(scheduler: Any, request: Any) -> tuple[int, list[list[int]] | None]:
    """How many tokens, of which blocks, vLLM is shown."""
    scheduler.get_num_new_matched_tokens(request, 0)
    params = request.kv_transfer_params
    return params["remote_num_tokens"], params["remote_block_ids"]


def counted(scheduler: Any) -> list[tuple[str, int, int]]:
    stats = scheduler.take_stats()
    return [] if stats is None else stats.data["kvplane_handles"]


def test_a_prompt_with_the_same_image_reads_all(scheduler: Any) -> None:
    """Prompts with media are proved like others, and it is counted once."""
    request = leg()

    assert offered(scheduler, request) == (len(TOKENS), [[7, 8]])
    assert offered(scheduler, request) == (len(TOKENS), [[7, 8]])

    assert counted(scheduler) == [("whole", len(TOKENS), len(TOKENS))]
    assert counted(scheduler) == []


def test_an_image_of_other_content_is_not_read(scheduler: Any) -> None:
    """It takes as many tokens, all alike; only what stands before it is read."""
    request = leg(mm_features=[image(CAT, "dog")])

    assert offered(scheduler, request) == (2 * CHUNK_TOKENS, [[7]])
    assert counted(scheduler) == [("cut", len(TOKENS), 2 * CHUNK_TOKENS)]


def test_embeddings_are_not_read(scheduler: Any) -> None:
    """What they are cannot be told from tokens."""
    request = leg(prompt_embeds=object())

    assert offered(scheduler, request) == (len(TOKENS), None)
    assert counted(scheduler) == [("unprovable", len(TOKENS), 0)]


def test_nonsense_in_a_handle_counts_as_nothing(scheduler: Any) -> None:
    """Requests come from anybody who reaches the engine."""
    request = leg(prompt_embeds=object())
    request.kv_transfer_params["remote_num_tokens"] = "many"

    scheduler.get_num_new_matched_tokens(request, 0)

    assert counted(scheduler) == [("unprovable", 0, 0)]
