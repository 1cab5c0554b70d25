"""What senders are told of bodies that cannot be read."""

import pytest

from kvplane_services.gateway.body import ClientBody
from kvplane_services.gateway.openai_errors import OpenAIError


def refusal(body: bytes) -> str:
    with pytest.raises(OpenAIError) as caught:
        ClientBody.parse(body, chat=True)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    return caught.value.message


@pytest.mark.parametrize(
    ("value", "half", "at"),
    [
        (rb"\ud800", r"\ud800", 6),
        (rb"x\ud800y", r"\ud800", 7),
        (rb"\uDBFF and \u0041", r"\uDBFF", 6),
        (rb"\ud83d\ud83d\ude00", r"\ud83d", 6),
        (rb"\ude00\ud83d", r"\ude00", 6),
        (rb"\ud83d\ude00\udc00", r"\udc00", 18),
        (rb"\\\ud800", r"\ud800", 8),
        (rb"\ud83d", r"\ud83d", 6),
    ],
)
def test_half_a_character_is_named(value: bytes, half: str, at: int) -> None:
    """The escape and its place are named; nothing is said of an early end."""
    said = refusal(b'{"a":"' + value + b'"}')

    assert f"half a character: {half} at byte {at} " in said
    assert "valid JSON" not in said
    assert "early" not in said


def test_half_a_character_in_a_key_is_named() -> None:
    """Keys are text as well."""
    assert r"\udfff at byte 2" in refusal(rb'{"\udfff":1}')


@pytest.mark.parametrize("value", [rb"\ud83d\ude00", rb"\\ud800", rb"\\\\udc00"])
def test_what_only_looks_like_half_a_character_is_not_blamed(value: bytes) -> None:
    """Pairs are characters, and a backslash that is escaped begins no escape."""
    body = b'{"model":"m","messages":[],"a":"' + value + b'"'

    assert ClientBody.parse(body + b"}", chat=True).model == "m"
    assert "half a character" not in refusal(body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"a":1', "not valid JSON: it ends too early, after byte 6"),
        (b"\xef\xbb\xbf{}", "not valid JSON: it starts with a byte order mark"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON: it starts with a byte order mark"),
        (b'{"a":1,}', "not valid JSON: trailing comma in object (byte 7)"),
        (b'{"\xff":1}', "not valid JSON: Invalid UTF-8"),
    ],
)
def test_faults_are_told_in_words_that_fit(body: bytes, says: str) -> None:
    """An early end is only said of what ends early."""
    assert says in refusal(body)


def test_a_large_body_is_judged_in_time() -> None:
    """Megabytes of escapes cost no more than other megabytes."""
    assert "ends too early" in refusal(b'{"a":"' + rb"\\" * 1_000_000)


@pytest.mark.parametrize(
    ("model", "says"), [(b"7", "must be a string"), (b'"\xff"', "is not valid UTF-8")]
)
def test_a_model_that_is_no_text_is_refused_for_what_it_is(model: bytes, says: str) -> None:
    """A string of broken bytes is not called another type."""
    with pytest.raises(OpenAIError) as caught:
        ClientBody.parse(b'{"messages":[],"model":' + model + b"}", chat=True)

    assert caught.value.message == f"the field 'model' {says}"
    assert caught.value.param == "model"
