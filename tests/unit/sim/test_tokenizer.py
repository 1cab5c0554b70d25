"""What the simulated tokenizer promises."""

import pytest

from kvplane_services.errors import InvalidRequest
from kvplane_services.sim.model import Attention
from kvplane_services.sim.tokenizer import EOS, IM_END, IM_START, decode, encode, encode_chat


@pytest.mark.parametrize("text", ["", "plain", "Grüße 🙂", "<|im_start|>user"])
def test_text_survives_encoding(text: str) -> None:
    """Decoding what was encoded gives the text back, and text never makes control tokens."""
    tokens = encode(text)

    assert decode(tokens) == text
    assert max(tokens, default=0) < IM_START


def test_a_generated_token_comes_back_as_itself() -> None:
    """Whatever the model writes is encoded to the very tokens that it wrote."""
    attention = Attention.start(seed=7)
    written: list[int] = []
    for _ in range(500):
        written.append(attention.next_token(may_end=False))
        attention.compute(written[-1:])

    assert encode(decode(written)) == written
    assert len(set(written)) > 40


def test_a_reply_continues_its_prompt() -> None:
    """The next turn's prompt starts with the last turn's prompt and reply, token for token."""
    asked = [{"role": "user", "content": "hello"}]
    reply = encode("well met")

    prompt = encode_chat(asked)
    following = encode_chat([*asked, {"role": "assistant", "content": decode(reply)}])

    assert following[: len(prompt) + len(reply) + 1] == [*prompt, *reply, EOS]


def test_parts_tools_and_calls_shape_the_prompt() -> None:
    """Text parts read as their text; tools and tool calls are in the prompt."""
    whole = encode_chat([{"role": "user", "content": "ab"}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert encode_chat([{"role": "user", "content": parts}]) == whole
    assert len(encode_chat([{"role": "user", "content": "ab"}], tools=[{"name": "t"}])) > len(whole)
    called = encode_chat([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}])
    assert '[{"id":"1"}]' in decode(called)


@pytest.mark.parametrize(
    "message",
    [
        {"content": "no role"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
)
def test_what_is_no_text_is_refused(message: dict[str, object]) -> None:
    """A message that the template cannot render is refused."""
    with pytest.raises(InvalidRequest):
        encode_chat([message])


def test_the_end_of_a_turn_is_the_end_of_a_reply() -> None:
    """The token that ends a reply is the one that the template puts behind a reply."""
    assert EOS == IM_END
