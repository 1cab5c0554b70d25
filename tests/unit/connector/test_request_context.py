from types import SimpleNamespace
from typing import Any

from kvplane.digest import context_of
from kvplane_connector.request_context import context_for, is_provable


def request(**changed: Any) -> Any:
    return SimpleNamespace(
        **{
            "prompt_token_ids": [1, 2, 3],
            "prompt_embeds": None,
            "prompt_is_token_ids": None,
            "lora_request": None,
            "cache_salt": None,
            "mm_features": [],
        }
        | changed
    )


def image(identifier: str, offset: int, length: int = 4) -> Any:
    return SimpleNamespace(
        identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length)
    )


def test_a_plain_request_has_the_plain_context() -> None:
    """Nothing but tokens shapes the KV of a plain request."""
    assert context_for(request(), 3) == context_of()


def test_adapter_salt_and_media_are_part_of_the_context() -> None:
    """Each of them makes another context, the place of an image too."""
    contexts = {
        context_for(request(**changed), 100)
        for changed in (
            {},
            {"lora_request": SimpleNamespace(lora_name="a")},
            {"cache_salt": "a"},
            {"mm_features": [image("a", 5)]},
            {"mm_features": [image("a", 6)]},
            {"mm_features": [image("b", 5)]},
        )
    }

    assert len(contexts) == 6


def test_media_behind_the_tokens_do_not_matter() -> None:
    """A turn that adds an image still shares the history before it."""
    before = request(mm_features=[image("a", 5)])
    after = request(mm_features=[image("a", 5), image("b", 200)])

    assert context_for(before, 100) == context_for(after, 100)


def test_embeddings_cannot_be_proved() -> None:
    """A prompt that is not made of tokens alone has no proof."""
    assert is_provable(request())
    assert not is_provable(request(prompt_token_ids=None))
    assert not is_provable(request(prompt_embeds=object()))
    assert not is_provable(request(prompt_is_token_ids=[True, False, True]))
