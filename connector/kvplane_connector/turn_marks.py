"""The mark of a turn, as far as it can be reported."""

from collections.abc import Mapping
from typing import Any

from kvplane.transfer_params import TurnMark

# The limits of session.proto and engine.proto; a frame that breaks them is refused as a whole.
_TENANT_BYTES = 256
_TEXT_BYTES = 512


def usable_mark(params: Mapping[str, Any] | None) -> TurnMark | None:
    """The mark in a request's `kv_transfer_params`; None without one, or if it cannot be reported.

    Marks come with requests, and requests from anybody who reaches the engine.
    """
    mark = TurnMark.decode(params)
    if mark is None or not mark.model or not mark.session_id:
        return None
    fits = _fits(mark.tenant, _TENANT_BYTES) and all(
        _fits(text, _TEXT_BYTES)
        for text in (mark.model, mark.adapter, mark.session_id, mark.decision_id)
    )
    return mark if fits and len(mark.message_digest) <= _TEXT_BYTES else None


def fits_text(text: str) -> bool:
    """Whether the plane's messages can carry a text, such as a retention's id.

    vLLM's ids hold the client's X-Request-Id.
    """
    return _fits(text, _TEXT_BYTES)


def _fits(text: str, limit: int) -> bool:
    try:
        return len(text.encode()) <= limit
    except UnicodeEncodeError:  # JSON can spell half a character, which no message can carry.
        return False
