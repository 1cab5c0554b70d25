"""What every store refuses, in the same words. Pure."""

from collections.abc import Sequence
from typing import Any

from kvplane_services.errors import Conflict, GuardFailed
from kvplane_services.store.ports import MAX_CHANGES, MAX_GUARDS, Delete, Guard, Put


def check_commit(changes: Sequence[Put[Any] | Delete], guards: Sequence[Guard]) -> None:
    """Raises ValueError if a commit is out of bounds."""
    if len(changes) > MAX_CHANGES or len(guards) > MAX_GUARDS:
        raise ValueError(f"at most {MAX_CHANGES} changes and {MAX_GUARDS} guards a commit")
    if len({change.key for change in changes}) < len(changes):
        raise ValueError("a commit changes each key once")


def conflict(key: str, *, found: int, expected: int) -> Conflict:
    """What is raised for a value that is not as expected."""
    return Conflict(
        f"{key} is at revision {found}, not {expected}: read it again and retry", key=key
    )


def guard_failed(guard: Guard) -> GuardFailed:
    """What is raised for a guard that does not hold."""
    return GuardFailed(
        f"{guard.table} {guard.key} is no longer at revision {guard.revision}: another replica "
        "has taken over",
        key=guard.key,
    )
