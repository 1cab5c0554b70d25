import dataclasses
import json
from pathlib import Path

import pytest

import environment
from environment import Environment, Missing


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with lock files and nothing built, as the current folder."""
    (tmp_path / "requirements").mkdir()
    for described in environment.ENVIRONMENTS.values():
        (tmp_path / "requirements" / described.lock).write_text(f"# {described.lock}\n")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built(name: str) -> None:
    """Leaves the mark of a finished environment."""
    folder = Path(environment.ENVIRONMENTS[name].folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / environment.STAMP).write_text(json.dumps(environment.wanted_stamp(name)))


def test_absent_environment_is_not_up_to_date(checkout: Path) -> None:
    """A clean clone has nothing."""
    assert not (checkout / ".venv").exists()
    assert not environment.up_to_date("dev")


def test_finished_environment_is_kept(checkout: Path) -> None:
    """A second make builds nothing."""
    assert checkout.exists()
    built("dev")
    assert environment.up_to_date("dev")


def test_changed_lock_rebuilds(checkout: Path) -> None:
    """Another lock file asks for another environment, and for that one only."""
    built("dev")
    built("engine")
    (checkout / "requirements" / "dev.txt").write_text("# other\n")
    assert not environment.up_to_date("dev")
    assert environment.up_to_date("engine")


def test_changed_project_reinstalls(checkout: Path) -> None:
    """New entry points or packages reach environments that hold the project."""
    built("dev")
    built("codegen")
    (checkout / "pyproject.toml").write_text("# other\n")
    assert not environment.up_to_date("dev")
    assert environment.up_to_date("codegen")


def test_development_environment_serves_the_demo(checkout: Path) -> None:
    """After `make test`, `make demo` needs no environment of its own; not the other way round."""
    assert checkout.exists()
    built("dev")
    assert environment.up_to_date("demo")
    built("demo")
    assert not environment.up_to_date("dev")


def test_torn_stamp_rebuilds(checkout: Path) -> None:
    """A stamp that cannot be read counts as none."""
    built("dev")
    (checkout / ".venv" / environment.STAMP).write_text("{")
    assert not environment.up_to_date("dev")


def test_too_little_disk_is_said_in_one_line() -> None:
    """What is needed and what is there are both told."""
    greedy = Environment(".venv-vllm", "engine-cpu.txt", disk=1e9)
    with pytest.raises(Missing, match=r"needs 1e\+09 GiB of disk, [\d.]+ are free") as caught:
        environment.check_machine(greedy)
    assert "\n" not in str(caught.value)


def test_foreign_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM for the CPU exists for Linux on two architectures."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    engine = dataclasses.replace(environment.ENVIRONMENTS["engine"], disk=0)
    with pytest.raises(Missing, match="needs Linux on x86_64 or aarch64"):
        environment.check_machine(engine)
