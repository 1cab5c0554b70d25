"""Lets a worker process sleep while its engine rests.

A worker in a process of its own asks for the next step without a pause for a second after the
last one, on a whole core, before it sleeps until it is told of one. An engine that rests
between steps makes some every second, so that its workers would never sleep.
"""

import functools
from typing import Any

_AMENDED = "spins_at_work_only"


class WorkerSpin:
    """Whether the step that a worker did last was one of an engine at rest."""

    def __init__(self) -> None:
        self.at_rest = False


def spin_at_work_only(condition_class: Any, spin: WorkerSpin) -> None:
    """Readers of vLLM's `SpinCondition` sleep at once when they wait at rest, in this process.

    Being told takes a few tens of microseconds more than finding out. A vLLM that has no such
    class, or another one, is left alone.
    """
    wait = getattr(condition_class, "wait", None)
    if wait is None or getattr(wait, _AMENDED, False):
        return

    @functools.wraps(wait)
    def wait_as_at_rest(condition: Any, *args: Any, **kwargs: Any) -> Any:
        if spin.at_rest:
            condition.last_read = float("-inf")
        return wait(condition, *args, **kwargs)

    setattr(wait_as_at_rest, _AMENDED, True)
    condition_class.wait = wait_as_at_rest
