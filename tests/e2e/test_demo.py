"""`kvplane demo` is what a new user runs first: its table is right and nothing stays behind."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ENGINE_PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"


def _demo(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    marker = f"kvplane-demo-test-{os.getpid()}-{tmp_path.name}"
    table = tmp_path / "table.json"
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "kvplane_services", "demo", *arguments),
            *("--json", str(table), "--log-dir", str(tmp_path / "logs")),
        ],
        env={**os.environ, "KVPLANE_DEMO_TEST": marker},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert _processes_with(marker) == []
    document: dict[str, Any] = json.loads(table.read_text())
    return document


def _processes_with(marker: str) -> list[str]:
    """Command lines of processes that were started, by whomever, with the marker."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "environ").read_text(errors="replace"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def _check(document: dict[str, Any]) -> None:
    turns = document["turns"]
    assert [turn["turn"] for turn in turns] == [1, 2, 3, 4, 5]
    assert [turn["strategy"] for turn in turns] == ["recompute", *["pull"] * 4]
    assert all(turn["equal"] for turn in turns)
    for before, turn in itertools.pairwise(turns):
        assert turn["pulled_tokens"] >= before["prompt_tokens"]
        assert turn["pulled_tokens"] + turn["computed_tokens"] == turn["prompt_tokens"]


def test_the_demo_on_simulated_engines_shows_reuse(tmp_path: Path) -> None:
    """Five turns, four of them pulled, all answers equal, and no process stays behind."""
    document = _demo(tmp_path, "--engine", "sim")

    assert document["engine"] == "sim"
    _check(document)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_stops_all(tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM no process stays behind, and the exit code says what it was."""
    marker = f"kvplane-demo-test-{os.getpid()}-{tmp_path.name}"
    with subprocess.Popen(
        [*(sys.executable, "-m", "kvplane_services", "demo"), *("--engine", "sim")],
        env={**os.environ, "KVPLANE_DEMO_TEST": marker, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "turn 1" in line:
                break
        demo.send_signal(number)
        rest = demo.stderr.read()

    assert demo.returncode == 128 + number
    assert f"{number.name}: stopped everything" in rest
    assert _processes_with(marker) == []


@pytest.mark.vllm
@pytest.mark.timeout(420)
def test_the_demo_on_real_engines_shows_reuse(tmp_path: Path) -> None:
    """The same on two vLLM processes, with vLLM's own counts, and the versions that ran."""
    document = _demo(tmp_path, "--engine", "vllm", "--engine-python", str(_ENGINE_PYTHON))

    assert document["engine"] == "vllm"
    assert {"kvplane", "nixl", "torch"} < document["versions"].keys()
    _check(document)
