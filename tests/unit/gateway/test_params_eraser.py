import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.gateway.params_eraser import ParamsEraser

values = st.recursive(
    st.none()
    | st.integers()
    | st.text()
    | st.sampled_from(['"kv_transfer_params"', '\\"kv_transfer_params\\":{', "kv_transfer_params"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def fed(text: bytes, cuts: list[int]) -> bytes:
    eraser = ParamsEraser()
    ends = [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    start, out = 0, b""
    for end in ends:
        out += eraser.feed(text[start:end])
        start = end
    return out


@given(
    before=st.dictionaries(st.text(), values, max_size=3),
    value=st.dictionaries(st.text(), values, max_size=3) | st.lists(values, max_size=3),
    after=st.dictionaries(st.text(), values, max_size=3),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    written=st.fixed_dictionaries(
        {"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])}
    ),
)
def test_value_becomes_null_wherever_the_text_is_cut(
    before: dict[str, Any],
    value: Any,
    after: dict[str, Any],
    cuts: list[int],
    written: dict[str, Any],
) -> None:
    """The value of the key is gone, every other byte is there, for any cuts."""
    for fields in (before, after):
        fields.pop("kv_transfer_params", None)

    def text(params: Any) -> bytes:
        fields = {"a": before, "kv_transfer_params": params, "z": after}
        return json.dumps(fields, **written).encode(errors="surrogatepass")

    assert fed(text(value), cuts) == text(None)


@given(values, st.lists(st.integers(0, 10_000), max_size=12))
def test_answers_without_the_key_are_unchanged(value: Any, cuts: list[int]) -> None:
    """Text that only talks about the key passes as it is."""
    text = b"data: " + json.dumps({"content": value}).encode() + b"\n\n"

    assert fed(text, cuts) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"kv_transfer_params":null}', b'{"kv_transfer_params":null}'),
        (b'{"kv_transfer_params" : {} , "b":1}', b'{"kv_transfer_params" : null , "b":1}'),
        (b'["kv_transfer_params",{"a":1}]', b'["kv_transfer_params",{"a":1}]'),
        (b'{"x":"\\"kv_transfer_params":{"a":1}}', b'{"x":"\\"kv_transfer_params":{"a":1}}'),
        (
            b'{"kv_transfer_params":{"a":"}\\\\"}}\n{"kv_transfer_params":[[1]]}',
            b'{"kv_transfer_params":null}\n{"kv_transfer_params":null}',
        ),
        (b"\xff\xfe binary", b"\xff\xfe binary"),
    ],
)
def test_single_cases(text: bytes, expected: bytes) -> None:
    """Nulls, blanks, lists, escapes and several answers in one text."""
    assert fed(text, []) == expected
    assert fed(text, list(range(len(text)))) == expected


def test_nothing_is_held_back() -> None:
    """Each piece of an answer without the key comes out at once and whole."""
    eraser = ParamsEraser()
    for piece in (b'data: {"kv_trans', b'fer":1}', b'"kv_transfer_params', b'"', b"x"):
        assert eraser.feed(piece) == piece
