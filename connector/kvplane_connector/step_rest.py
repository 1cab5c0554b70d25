"""Lets an engine rest between steps in which it only waits for retentions to end.

vLLM steps for as long as anything is retained, a thousand times a second, because only a step
finds out what has expired, was read or is to be released. For that, twenty times are
enough. Between them the engine waits at vLLM's own queue of requests and commands, takes
nothing from it, and goes on at once when something comes, there or from the plane.

It rests only while every request is finished and told to the workers. Ranks that step in
lockstep for each other (data parallel with experts) do not rest.
"""

import functools
import logging
import queue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading

_log = logging.getLogger(__name__)

_AMENDED = "rests_between_steps"


class StepRest:
    """Says when an engine may rest, and ends a rest early.

    Written by the step loop; `wake` may be called from any thread.

    Args:
        seconds: Longest rest; what expires, or is read, is noticed this much later at most.

    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._quiet_steps = 0
        self._woken = False
        self._waiting: threading.Condition | None = None

    def stepped(self, *, quiet: bool) -> None:
        """A step was put together; `quiet` if it computes nothing and the workers hear nothing."""
        self._quiet_steps = self._quiet_steps + 1 if quiet else 0

    def is_due(self, steps_under_way: int) -> bool:
        """Whether those under way and the last step that is over were all quiet."""
        return self._quiet_steps > steps_under_way

    def wake(self) -> None:
        """There are orders for the next step: ends a rest, or leaves out the next one."""
        self._woken = True
        if (waiting := self._waiting) is not None:
            with waiting:
                waiting.notify()

    def rest(self, inputs: "queue.Queue[Any]") -> None:
        """Waits until there is something in `inputs`, or somebody wakes, or the time is over."""
        with inputs.not_empty:
            self._waiting = inputs.not_empty
            inputs.not_empty.wait_for(lambda: self._woken or inputs.queue, self._seconds)
            self._woken = False


def rest_between_steps(core_class: Any, lockstep_class: Any) -> bool:
    """Has engines of vLLM's `core_class` rest before a step if their connector's `step_rest` says.

    Args:
        core_class: vLLM's `EngineCoreProc`, amended for this process.
        lockstep_class: Its subclass whose engines step for each other.

    Returns:
        Whether this vLLM is built as that takes; otherwise nothing is changed.

    """
    take_input = getattr(core_class, "_process_input_queue", None)
    if take_input is None or not hasattr(core_class, "has_work"):
        _log.warning("this vLLM runs its steps in another way: it does not rest between them")
        return False
    if getattr(take_input, _AMENDED, False):
        return True

    @functools.wraps(take_input)
    def rest_and_take_input(core: Any) -> Any:
        connector = core.scheduler.get_kv_connector()
        rest = getattr(connector, "step_rest", None)
        if (
            rest is not None
            and rest.is_due(len(core.batch_queue or ()))
            and not isinstance(core, lockstep_class)
            and _only_retains(core)
        ):
            rest.rest(core.input_queue)
        return take_input(core)

    setattr(rest_and_take_input, _AMENDED, True)
    core_class._process_input_queue = rest_and_take_input  # noqa: SLF001 - vLLM has no hook there
    return True


def _only_retains(core: Any) -> bool:
    """Whether all that an engine core steps for are requests that are finished."""
    scheduler = core.scheduler
    return (
        isinstance(core.input_queue, queue.Queue)
        and not scheduler.has_unfinished_requests()
        and getattr(scheduler, "ec_connector", None) is None
        # With nothing left at all, vLLM waits at the same queue by itself.
        and core.has_work()
    )
