import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplane_services.clock import SystemClock
from kvplane_services.local.engines import prefill_and_decode, running_engines
from kvplane_services.local.processes import ManagedProcess, StartError, answers, free_ports

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}])
print(child.pid, flush=True)
time.sleep(60)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def start(tmp_path: Path, code: str) -> ManagedProcess:
    return ManagedProcess(
        name="it",
        command=[sys.executable, "-c", code],
        environment=os.environ,
        log=tmp_path / "it.log",
        clock=SystemClock(),
    )


async def first_line(process: ManagedProcess) -> str:
    clock = SystemClock()
    while not (lines := process.tail().splitlines()):
        await clock.sleep(0.02)
    return lines[0]


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("child", ["import time; time.sleep(60)", DEAF])
async def test_stopping_takes_the_children_along(tmp_path: Path, child: str) -> None:
    """A process and its children are gone afterwards, those that do not listen too."""
    process = start(tmp_path, PARENT.format(child=child))
    pid = int(await first_line(process))
    assert exists(pid)

    await process.stop(patience=0.5)

    assert process.exit_code == -signal.SIGTERM
    assert not exists(pid)


async def test_a_dead_process_can_be_stopped(tmp_path: Path) -> None:
    """Stopping what ended by itself does nothing."""
    process = start(tmp_path, "print('over')")
    until(lambda: process.exit_code is not None)

    await process.stop()
    process.kill()

    assert process.exit_code == 0


STARTER = """
import os, pathlib, sys, time
from kvplane_services.clock import SystemClock
from kvplane_services.local.processes import ManagedProcess
process = ManagedProcess(
    name="it",
    command=[sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
    environment=os.environ,
    log=pathlib.Path(sys.argv[1]),
    clock=SystemClock(),
)
print(process.pid, flush=True)
time.sleep(60)
"""


def test_nothing_is_left_when_the_starter_is_killed(tmp_path: Path) -> None:
    """A process ends with the one that started it, even if that one has no time to stop it."""
    log = tmp_path / "it.log"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(log)], stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        until(lambda: log.read_text() == "1\n")

        starter.kill()

    until(lambda: not exists(pid))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The message says what could not be started."""
    with pytest.raises(StartError, match="it could not be started"):
        ManagedProcess(
            name="it",
            command=["/nowhere/python"],
            environment={},
            log=tmp_path / "it.log",
            clock=SystemClock(),
        )


async def test_an_engine_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    """The error names the engine, its log and the log's tail; the other engine is stopped."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no such module: vllm' >&2\nexit 3\n")
    python.chmod(0o755)
    options = prefill_and_decode(model_dir=tmp_path)

    with pytest.raises(StartError, match=r"(?s)exit code 3.*no such module: vllm"):
        async with running_engines(*options, engine_python=python, log_dir=tmp_path / "logs"):
            raise AssertionError("it started")


async def test_an_engine_that_never_serves_is_given_up(tmp_path: Path) -> None:
    """After the timeout the error says so, and the process is gone."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    python.chmod(0o755)
    options = prefill_and_decode(model_dir=tmp_path)
    said: list[str] = []

    with pytest.raises(StartError, match="not ready within 1 s"):
        async with running_engines(
            *options,
            engine_python=python,
            log_dir=tmp_path / "logs",
            startup_timeout=1,
            progress=said.append,
        ):
            raise AssertionError("it started")

    assert not exists(int((tmp_path / "logs" / "decode-0.log").read_text()))
    assert any(line.startswith("decode-0: ") for line in said)


async def test_ports_are_free_and_different() -> None:
    """Nobody listens on the ports that are given out."""
    ports = free_ports(4)

    assert len(set(ports)) == 4
    assert not any([await answers(port, "/health", patience=0.5) for port in ports])
