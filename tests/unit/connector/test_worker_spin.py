from typing import Any

import pytest

from kvplane_connector.worker_spin import WorkerSpin, spin_at_work_only


@pytest.fixture
def condition_class() -> Any:
    """A class that waits as vLLM's does: it spins until its last read is a second ago."""

    class SpinCondition:
        def __init__(self) -> None:
            self.last_read = 100.0
            self.waits: list[tuple[str, Any]] = []

        def wait(self, timeout_ms: int | None = None) -> None:
            spins = self.last_read + 1 >= 100.0
            self.waits.append(("spins" if spins else "sleeps", timeout_ms))

    return SpinCondition


def test_a_worker_sleeps_at_rest_and_spins_at_work(condition_class: Any) -> None:
    """After a step at rest it waits to be told; a read at work makes it spin again."""
    spin = WorkerSpin()
    spin_at_work_only(condition_class, spin)
    condition = condition_class()

    condition.wait(7)
    spin.at_rest = True
    condition.wait(timeout_ms=8)
    spin.at_rest, condition.last_read = False, 100.0
    condition.wait()

    assert condition.waits == [("spins", 7), ("sleeps", 8), ("spins", None)]


def test_a_vllm_without_such_a_class_is_left_alone() -> None:
    """Workers then wait as they do."""
    spin_at_work_only(None, WorkerSpin())
    spin_at_work_only(object, WorkerSpin())
