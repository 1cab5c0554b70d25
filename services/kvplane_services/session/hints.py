"""What clients say of a session's future. Pure."""

from dataclasses import replace

from kvplane_services.errors import InvalidRequest
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.record import SessionRecord


def hinted(
    record: SessionRecord,
    config: SessionConfig,
    *,
    keep_for: float | None = None,
    final_turn: bool | None = None,
) -> SessionRecord:
    """The session with those hints that are given.

    Args:
        record: The session.
        config: Bounds of what is granted.
        keep_for: How long to keep it from now on, in seconds; zero takes the wish back.
        final_turn: Whether the running or next turn is the last, which needs least to be kept.

    Raises:
        InvalidRequest: `keep_for` is negative.

    """
    hints, wish = record.hints, record.wish
    if keep_for is not None:
        check_keep(keep_for)
        granted = config.clamp_keep(keep_for) if keep_for else 0.0
        hints, wish = replace(hints, keep_for=granted), wish + (granted > 0)
    if final_turn is not None:
        hints = replace(hints, final_turn=final_turn)
        if final_turn:
            hints = replace(hints, keep_for=0.0)
    return record._replace(hints=hints, wish=wish)


def check_keep(keep_for: float) -> None:
    """Raises InvalidRequest if a keeping time is none."""
    if keep_for < 0:
        raise InvalidRequest("keep_for must not be negative", field="hints.keep_for")
