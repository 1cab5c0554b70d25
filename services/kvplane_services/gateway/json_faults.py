"""Says what is wrong with a request body that cannot be read, in words for its sender."""

import codecs
import re

import msgspec

_HIGH = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF = rb"(?:" + _HIGH + rb"|" + _LOW + rb")"
# Everything up to the first half of a character that stands alone. Possessive, so that it takes
# time in proportion to the body, whatever is in it.
_UP_TO_HALF = re.compile(
    rb"(?:[^\\]++|" + _HIGH + _LOW + rb"|(?!" + _HALF + rb")\\.)*+(?P<half>" + _HALF + rb")",
    re.DOTALL,
)
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def fault_of(body: bytes, error: msgspec.DecodeError) -> str:
    """What is wrong with a body that the decoder refused with `error`.

    The decoder's own words mislead where a body is empty, and where an escape is one half of a
    character, which it may take for the end of the body.
    """
    if not body.strip():
        return "the request body is empty: send a JSON object"
    if (found := _UP_TO_HALF.match(body)) is not None:
        half = found["half"].decode()
        return (
            f"the request body has half a character: {half} at byte {found.start('half')} stands "
            "for one half of a surrogate pair, and the other half is missing; send both or neither"
        )
    if body.startswith(_MARKS):
        reason = "it starts with a byte order mark; send UTF-8 without one"
    elif "truncated" in str(error):
        reason = f"it ends too early, after byte {len(body)}"
    else:
        reason = str(error).removeprefix("JSON is malformed: ")
    return f"the request body is not valid JSON: {reason}"
