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
        (tmp_path / "requirements" / described.lock).write_text(f"{described.lock}==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built(name: str) -> None:
    """Leaves the mark of a finished environment."""
    folder = Path(environment.ENVIRONMENTS[name].folder)
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "python").touch()
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
    (checkout / "requirements" / "dev.txt").write_text("other==1\n")
    assert not environment.up_to_date("dev")
    assert environment.up_to_date("engine")


def test_new_comment_rebuilds_nothing(checkout: Path) -> None:
    """Only what is pinned counts, so that locking again without a change costs nothing."""
    built("engine")
    lock = checkout / "requirements" / "engine-cpu.txt"
    lock.write_text("# Another digest.\n" + lock.read_text() + "    # via something\n")
    assert environment.up_to_date("engine")


def test_changed_project_is_installed_again_without_its_packages(checkout: Path) -> None:
    """New entry points reach environments that hold the project; their packages stay."""
    built("dev")
    built("codegen")
    held = environment.read_stamp(checkout / ".venv")
    (checkout / "pyproject.toml").write_text("[project.scripts]\nkvplane = 'other:main'\n")
    assert not environment.up_to_date("dev")
    assert environment.same_packages(held, environment.wanted_stamp("dev"))
    assert environment.up_to_date("codegen")


def test_changed_tool_settings_rebuild_nothing(checkout: Path) -> None:
    """A lint rule more leaves every environment as it is."""
    built("dev")
    (checkout / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert environment.up_to_date("dev")


def test_demo_environment_grows(checkout: Path) -> None:
    """`make test` adds to what `make demo` built, unless a lock file changed in between."""
    built("demo")
    held = environment.read_stamp(checkout / ".venv")
    assert environment.can_grow(held, "dev")
    assert not environment.can_grow(held, "engine")
    assert not environment.can_grow({}, "dev")
    (checkout / "requirements" / "demo.txt").write_text("other==1\n")
    assert not environment.can_grow(held, "dev")


def test_development_environment_serves_the_demo(checkout: Path) -> None:
    """After `make test`, `make demo` needs no environment of its own; not the other way round."""
    assert checkout.exists()
    built("dev")
    assert environment.up_to_date("demo")
    built("demo")
    assert not environment.up_to_date("dev")


def test_lost_python_rebuilds(checkout: Path) -> None:
    """An environment whose Python was uninstalled is built again, not used."""
    built("dev")
    (checkout / ".venv" / "bin" / "python").unlink()
    assert not environment.up_to_date("dev")


def test_moved_checkout_rebuilds(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of an environment name their Python by its full path, so a move breaks them."""
    built("dev")
    moved = checkout.with_name("moved")
    checkout.rename(moved)
    monkeypatch.chdir(moved)
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


def test_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C during an installation says so in a line, and ends as interrupts do."""

    def interrupted(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "ensure", interrupted)
    monkeypatch.setattr("sys.argv", ["environment.py", "demo"])
    assert environment.main() == 130
    assert capsys.readouterr().err == "\nkvplane: interrupted; the next make builds .venv anew\n"
