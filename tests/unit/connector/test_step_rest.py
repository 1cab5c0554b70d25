import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane_connector.step_rest import StepRest, rest_between_steps

# Longer than any test: who rests this long was not woken.
LONG = 60.0


class Core:
    """As much of vLLM's engine core as rests are about."""

    def __init__(self, rest: Any = None) -> None:
        self.input_queue: Any = queue.Queue()
        self.batch_queue: Any = None
        self.unfinished = False
        self.taken: list[Any] = []
        self.scheduler = SimpleNamespace(
            get_kv_connector=lambda: SimpleNamespace(step_rest=rest),
            has_unfinished_requests=lambda: self.unfinished,
        )

    def has_work(self) -> bool:
        return True

    def _process_input_queue(self) -> None:
        while not self.input_queue.empty():
            self.taken.append(self.input_queue.get_nowait())

    def before_step(self) -> None:
        self._process_input_queue()


class Rest(StepRest):
    """Counts the rests, and takes none."""

    def __init__(self, *, quiet_steps: int = 5) -> None:
        super().__init__(LONG)
        self.rests = 0
        for _ in range(quiet_steps):
            self.stepped(quiet=True)

    def rest(self, inputs: Any) -> None:
        assert inputs is not None
        self.rests += 1


@pytest.fixture
def classes() -> tuple[Any, Any]:
    """Amended classes of a test's own: of engines alone, and of those that step for each other."""
    alone = type("EngineCoreProc", (Core,), {})
    lockstep = type("DPEngineCoreProc", (alone,), {})
    assert rest_between_steps(alone, lockstep)
    return alone, lockstep


@pytest.fixture
def core_class(classes: tuple[Any, Any]) -> Any:
    """The class of engines that step alone."""
    return classes[0]


def resting(rest: StepRest, inputs: "queue.Queue[Any]") -> threading.Thread:
    thread = threading.Thread(target=rest.rest, args=(inputs,), daemon=True)
    thread.start()
    return thread


def test_only_steps_that_were_all_quiet_are_followed_by_a_rest() -> None:
    """What was told in a step is heard of when that step is over, and no sooner rested."""
    rest = StepRest(LONG)
    assert not rest.is_due(0)

    rest.stepped(quiet=True)
    assert (rest.is_due(0), rest.is_due(1)) == (True, False)
    rest.stepped(quiet=True)
    assert (rest.is_due(1), rest.is_due(2)) == (True, False)
    rest.stepped(quiet=False)
    assert not rest.is_due(0)


def test_a_rest_is_over_when_its_time_is() -> None:
    """Nothing arrives and nobody wakes: the engine steps all the same."""
    StepRest(0.001).rest(queue.Queue())


def arrived_before(rest: StepRest, inputs: "queue.Queue[Any]") -> threading.Thread:
    inputs.put("request")
    return resting(rest, inputs)


def arrived_within(rest: StepRest, inputs: "queue.Queue[Any]") -> threading.Thread:
    thread = resting(rest, inputs)
    inputs.put("request")
    return thread


@pytest.mark.parametrize("order", [arrived_before, arrived_within])
def test_what_arrives_ends_a_rest_and_stays_where_it_is(
    order: Callable[[StepRest, "queue.Queue[Any]"], threading.Thread],
) -> None:
    """A request that came before the rest or within it is vLLM's to take."""
    inputs: queue.Queue[str] = queue.Queue()
    thread = order(StepRest(LONG), inputs)

    thread.join(LONG / 2)

    assert not thread.is_alive()
    assert inputs.get_nowait() == "request"


def woken_before(rest: StepRest, inputs: "queue.Queue[Any]") -> threading.Thread:
    rest.wake()
    return resting(rest, inputs)


def woken_within(rest: StepRest, inputs: "queue.Queue[Any]") -> threading.Thread:
    thread = resting(rest, inputs)
    rest.wake()
    return thread


@pytest.mark.parametrize("order", [woken_before, woken_within])
def test_who_has_orders_ends_the_rest_that_is_or_the_next_one(
    order: Callable[[StepRest, "queue.Queue[Any]"], threading.Thread],
) -> None:
    """A wake is never lost, whenever it comes."""
    thread = order(StepRest(LONG), queue.Queue())

    thread.join(LONG / 2)

    assert not thread.is_alive()


def test_an_engine_that_only_retains_rests_and_then_takes_its_input(core_class: Any) -> None:
    """The rest stands before vLLM's own look at its queue."""
    rest = Rest()
    core = core_class(rest)
    core.input_queue.put("request")

    core.before_step()

    assert rest.rests == 1
    assert core.taken == ["request"]


def test_engines_with_something_to_do_do_not_rest(core_class: Any) -> None:
    """Neither with a request, nor with steps under way that may say something."""
    working, overlapping = Rest(), Rest(quiet_steps=2)
    busy = core_class(working)
    busy.unfinished = True
    ahead = core_class(overlapping)
    ahead.batch_queue = ["step", "step"]

    busy.before_step()
    ahead.before_step()

    assert (working.rests, overlapping.rests) == (0, 0)


def test_engines_of_other_kinds_step_as_vllm_does(classes: tuple[Any, Any]) -> None:
    """Those in lockstep, with another connector or another queue, are left alone."""
    rest = Rest()
    alone, in_lockstep = classes
    lockstep, other, strange = in_lockstep(rest), alone(None), alone(rest)
    strange.input_queue = SimpleNamespace(empty=lambda: True)

    for core in (lockstep, other, strange):
        core.before_step()

    assert rest.rests == 0


def test_two_connectors_in_a_process_amend_it_once(classes: tuple[Any, Any]) -> None:
    """Each engine then still rests once before a step."""
    rest = Rest()
    core_class, lockstep_class = classes
    assert rest_between_steps(core_class, lockstep_class)

    core_class(rest).before_step()

    assert rest.rests == 1


def test_a_vllm_that_steps_otherwise_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and nothing is changed."""
    assert not rest_between_steps(object, Core)
    assert "does not rest" in caplog.text
