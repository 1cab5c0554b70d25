from types import SimpleNamespace
from typing import Any

from kvplane.digest import Medium, chain_of, context_of
from kvplane_connector.request_context import LeadingTokens, context_for, is_provable, media_of


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
    assert context_for(request()) == context_of()
    assert media_of(request()) == media_of(request(mm_features=None)) == ()


def test_adapter_and_salt_are_part_of_the_context() -> None:
    """Each of them makes another context."""
    contexts = {
        context_for(request(**changed))
        for changed in (
            {},
            {"lora_request": SimpleNamespace(lora_name="a")},
            {"cache_salt": "a"},
        )
    }

    assert len(contexts) == 3


def test_media_are_known_by_their_content_and_place() -> None:
    """All of them, in the order of the prompt."""
    found = media_of(request(mm_features=[image("a", 5), image("b", 200, 7)]))

    assert found == (Medium(5, 4, "a"), Medium(200, 7, "b"))


def test_embeddings_cannot_be_proved() -> None:
    """A prompt that is not made of tokens alone has no proof."""
    assert is_provable(request())
    assert not is_provable(request(prompt_token_ids=None))
    assert not is_provable(request(prompt_embeds=object()))
    assert not is_provable(request(prompt_is_token_ids=[True, False, True]))


def test_leading_tokens_are_those_and_no_more() -> None:
    """Later ones of the same request do not show, whenever they come."""
    tokens = [5, 6, 7, 8]
    leading = LeadingTokens(tokens, 3)
    tokens.append(9)

    assert (len(leading), list(leading)) == (3, [5, 6, 7])
    assert (leading[0], leading[-1], leading[1:]) == (5, 7, [6, 7])
    assert chain_of(leading, b"") == chain_of([5, 6, 7], b"")
