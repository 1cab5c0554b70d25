"""What every store refuses, in the same words, and when a commit is done already. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvplane_services.errors import Conflict, GuardFailed, Unavailable
from kvplane_services.store.model import Delete, Guard, Put
from kvplane_services.store.ports import MAX_CHANGES, MAX_GUARDS


@dataclass(frozen=True, slots=True)
class Held:
    """What a store holds under the key of a change.

    Attributes:
        revision: Of the value; 0 for none.
        as_wanted: Whether that is exactly what the change would make of it.

    """

    revision: int
    as_wanted: bool


def check_commit(changes: Sequence[Put[Any] | Delete], guards: Sequence[Guard]) -> None:
    """Raises ValueError if a commit is out of bounds."""
    if len(changes) > MAX_CHANGES or len(guards) > MAX_GUARDS:
        raise ValueError(f"at most {MAX_CHANGES} changes and {MAX_GUARDS} guards a commit")
    if len({change.key for change in changes}) < len(changes):
        raise ValueError("a commit changes each key once")


def check_held(change: Put[Any] | Delete, held: Held) -> None:
    """Raises Conflict if a value is not as a change expects it to be."""
    if change.expected in (None, held.revision) or held.as_wanted:
        return
    raise Conflict(
        f"{change.key} is at revision {held.revision}, not {change.expected}: read it again and "
        "retry",
        key=change.key,
    )


def done_at(changes: Sequence[Put[Any] | Delete], held: Sequence[Held]) -> int | None:
    """The revision that a commit got earlier, if it did: the answer to it may have been lost.

    Changes that expect nothing are made again, since nobody knows whose value is there.
    """
    revisions = {
        one.revision for change, one in zip(changes, held, strict=True) if isinstance(change, Put)
    }
    if len(revisions) != 1 or any(change.expected is None for change in changes):
        return None
    return revisions.pop() if all(one.as_wanted for one in held) else None


def guard_failed(guard: Guard) -> GuardFailed:
    """What is raised for a guard that does not hold."""
    return GuardFailed(
        f"{guard.table} {guard.key} is no longer at revision {guard.revision}: another replica "
        "has taken over",
        key=guard.key,
    )


def store_away(retry_after: float = 1.0) -> Unavailable:
    """What callers are told while the store is away; where it is, and why, is for the log.

    They are all told the same: most calls take several steps, of which some may be done.
    """
    return Unavailable(
        "the plane's store is away, and whether anything was changed is unknown: try again when "
        "it is back",
        retry_after=retry_after,
    )


def anchor_gone(anchor: str) -> Unavailable:
    """What is raised for a write on an anchor that the store does not have."""
    return Unavailable(
        f"the store no longer has the anchor {anchor}: what hangs on it is put back on a new one",
        retry_after=0.5,
    )
