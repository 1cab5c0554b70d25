"""The operator's commands against a running plane."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvplane.client import SessionKey
from kvplane_services.cli.main import create_app
from tests.support.linked_engine import LinkedEngine, eventually, linked_engine
from tests.support.plane_process import PlaneProcess
from tests.support.programs import KVPLANE, Program, wait_until

KEY = SessionKey("default", "m", "", "a conversation with a rather long name: " + "x" * 120)


class EngineThread:
    """An engine that runs beside a test which has no event loop."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._done = threading.Event()
        self._ready = threading.Event()
        self.engine: LinkedEngine | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))

    async def _live(self) -> None:
        async with linked_engine("decode-0", self._target) as engine:
            # Another turn each time, as vLLM's request ids never repeat.
            retention = f"r-{uuid.uuid4().hex}"
            engine.retain(retention, KEY)
            await eventually(lambda: engine.held[retention].lease != "")
            self.engine = engine
            self._ready.set()
            await asyncio.to_thread(self._done.wait)

    def __enter__(self) -> LinkedEngine:
        self._thread.start()
        assert self._ready.wait(20)
        assert self.engine is not None
        return self.engine

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    plane = PlaneProcess(tmp_path_factory.mktemp("plane"))
    plane.start()
    yield plane
    assert plane.stop() == 0


@pytest.fixture
def engine(plane: PlaneProcess) -> Iterator[LinkedEngine]:
    with EngineThread(plane.target) as engine:
        yield engine


def run(plane: PlaneProcess, *arguments: str) -> Result:
    """Runs a command against the plane, which it finds by the environment."""
    return CliRunner().invoke(create_app(), arguments, env={"KVPLANE_PLANE": plane.target})


def rows(plane: PlaneProcess, *arguments: str) -> list[list[str]]:
    result = run(plane, *arguments)
    assert result.exit_code == 0, result.output
    return [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]


def answer(plane: PlaneProcess, *arguments: str) -> Any:
    result = run(plane, *arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("engine")
def test_explain_takes_names_and_says_what_is_unknown(plane: PlaneProcess) -> None:
    """A session is given as it is listed; an unknown one and an unknown tenant are told apart."""
    for name in (KEY.name, KEY.name.removeprefix("sessions/")):
        known = run(plane, "explain", "--session", name)
        assert (known.exit_code, known.stderr) == (0, "")
        assert "engines/decode-0" in known.stdout
    session = run(plane, "explain", "--session", "default:m::nobody")
    assert session.stderr == (
        "kvplane: the session sessions/default:m::nobody is not known; others of its tenant are\n"
    )
    tenant = run(plane, "explain", "--model", "m", "--session", "s", "--tenant", "nobody")
    assert tenant.stderr == "kvplane: no session of the tenant 'nobody' is known\n"
    assert tenant.stdout == run(plane, "explain", "--model", "m").stdout


@pytest.mark.usefixtures("engine")
def test_lists_show_what_there_is(plane: PlaneProcess) -> None:
    """Engines, leases and sessions are listed one a line, with names in full."""
    header, engine_row = rows(plane, "engines", "list")
    assert header[:3] == ["NAME", "ROLE", "STATE"]
    assert engine_row[:4] == ["engines/decode-0", "decode", "active", "m"]
    _, lease_row = rows(plane, "leases", "list", "--engine", "decode-0")
    assert lease_row[1:4] == [KEY.name, "engines/decode-0", "active"]
    wait_until(
        lambda: "retained" in run(plane, "sessions", "list").stdout, seconds=10, what="session"
    )
    _, session_row = rows(plane, "sessions", "list", "--model", "m")
    assert session_row[:3] == [KEY.name, "retained", "engines/decode-0"]
    assert session_row[3] == lease_row[0]


@pytest.mark.usefixtures("engine")
def test_json_is_the_protobuf_mapping(plane: PlaneProcess) -> None:
    """`--output json` of each list and get is what the services' messages map to."""
    (engine,) = answer(plane, "engines", "list")["engines"]
    assert engine == answer(plane, "engines", "get", "decode-0") | {
        "load": engine["load"],
        "expireTime": engine["expireTime"],
    }
    assert (engine["role"], engine["layout"]["totalBlocks"]) == ("ROLE_DECODE", "1000")
    (lease,) = answer(plane, "leases", "list")["leases"]
    assert answer(plane, "leases", "get", lease["name"])["fencingToken"] == lease["fencingToken"]
    assert lease["sessionKey"]["sessionId"] == KEY.session_id
    wait_until(
        lambda: bool(answer(plane, "sessions", "list")["sessions"]), seconds=10, what="session"
    )
    assert answer(plane, "sessions", "get", KEY.session_id, "--model", "m")["name"] == KEY.name


@pytest.mark.usefixtures("engine")
def test_get_shows_the_details(plane: PlaneProcess) -> None:
    """`get` shows what a row of the list has no room for."""
    shown = run(plane, "engines", "get", "engines/decode-0").stdout
    assert re.search(r"^vllm +0\.32\.0$", shown, re.MULTILINE)
    (lease,) = answer(plane, "leases", "list")["leases"]
    shown = run(plane, "leases", "get", lease["name"].removeprefix("leases/")).stdout
    assert re.search(rf"^fencing token +{lease['fencingToken']}$", shown, re.MULTILINE)
    assert re.search(r"^proof +blake2b-128/2 over 256 tokens$", shown, re.MULTILINE)


@pytest.mark.usefixtures("engine")
def test_engine_is_drained_resumed_and_deregistered(plane: PlaneProcess) -> None:
    """An operator takes an engine out, puts it back, and throws it out."""
    assert answer(plane, "engines", "drain", "decode-0")["state"] == "STATE_DRAINING"
    assert rows(plane, "engines", "list")[1][2] == "draining"
    assert answer(plane, "engines", "resume", "decode-0")["state"] == "STATE_ACTIVE"
    epoch = int(answer(plane, "engines", "get", "decode-0")["epoch"])
    stale = run(plane, "engines", "deregister", "decode-0", "--epoch", str(epoch - 1))
    assert (stale.exit_code, len(stale.stderr.splitlines())) == (1, 1)
    assert run(plane, "engines", "deregister", "decode-0").stdout == "deregistered decode-0\n"


def test_lease_is_released(plane: PlaneProcess, engine: LinkedEngine) -> None:
    """Releasing a lease takes the blocks from the engine; a second time is no error."""
    (lease,) = answer(plane, "leases", "list")["leases"]
    for _ in range(2):
        result = run(plane, "leases", "release", lease["name"])
        assert (result.exit_code, result.stdout) == (0, f"released {lease['name']}\n")
    wait_until(lambda: not engine.held, seconds=15, what="release at the engine")
    ended = run(plane, "leases", "get", lease["name"])
    assert "ended (released)" in ended.stdout or "releasing" in ended.stdout


def test_session_is_touched_ended_and_deleted(plane: PlaneProcess, engine: LinkedEngine) -> None:
    """The hints of a session can be given by hand, by name and by id."""
    name = KEY.name
    wait_until(
        lambda: run(plane, "sessions", "get", name).exit_code == 0, seconds=10, what="session"
    )
    touched = run(plane, "sessions", "touch", name, "--for", "30s")
    assert touched.stdout.startswith("kept for "), touched.output
    ended = answer(plane, "sessions", "end", KEY.session_id, "--model", "m")
    assert ended["state"] == "STATE_ENDED"
    wait_until(lambda: not engine.held, seconds=15, what="release at the engine")
    assert "nothing to keep" in run(plane, "sessions", "touch", name).stdout
    assert run(plane, "sessions", "delete", name.removeprefix("sessions/")).exit_code == 0
    gone = run(plane, "sessions", "get", name)
    assert (gone.exit_code, gone.stdout, len(gone.stderr.splitlines())) == (1, "", 1)


def test_explain_says_why(plane: PlaneProcess, engine: LinkedEngine) -> None:
    """Every candidate is shown; so is why a turn would fail."""
    shown = run(plane, "explain", "--model", "m", "--session", KEY.session_id)
    assert shown.exit_code == 0
    assert "engines/decode-0" in shown.stdout
    unserved = run(plane, "explain", "--model", "no-such-model", "--session", "s")
    assert unserved.stdout.startswith("the turn would fail: ")
    assert answer(plane, "explain", "--model", "no-such-model")["failure"]


def test_process_that_is_not_the_one_to_ask_names_it(tmp_path: Path) -> None:
    """Asked about what another process of a split plane serves, a command says which."""
    program = Program("leases", "--grpc", "127.0.0.1:0", log=tmp_path / "log")
    try:
        address = program.wait_for(r"gRPC ready on (\S+)")
        for arguments, process in (
            (["sessions", "list"], "registry"),
            (["explain", "--model", "m"], "router"),
        ):
            asked = CliRunner().invoke(create_app(), [*arguments, "--plane", address])
            assert asked.exit_code == 1
            assert asked.stderr.startswith(
                f"kvplane: the process at {address} is not the one to ask"
            )
            assert f"name `kvplane {process}` with --{process} HOST:PORT" in asked.stderr
    finally:
        program.kill()


@pytest.mark.usefixtures("engine")
def test_watch_streams_until_interrupted(plane: PlaneProcess) -> None:
    """`watch` prints the state and each change as they come, and ends at Ctrl-C."""
    with _watching(plane, "leases", "watch", "--output", "json") as (process, lines):
        changes = (json.loads(line) for line in lines)
        live = []
        while "synced" not in (change := next(changes)):
            live += [change["upserted"]] if "upserted" in change else []
        (lease,) = live
        assert lease["sessionKey"]["sessionId"] == KEY.session_id
        assert run(plane, "leases", "release", lease["name"]).exit_code == 0
        ended = next(change for change in changes if "ended" in change)
        assert ended["ended"]["name"] == lease["name"]
        assert ended["ended"]["endReason"] == "END_REASON_RELEASED"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_session_watch_is_one_line_an_event(plane: PlaneProcess) -> None:
    """In a pipe each event is a line as soon as it happens."""
    with (
        _watching(plane, "sessions", "watch") as (process, lines),
        EngineThread(plane.target),
    ):
        line = next(line for line in lines if "retained" in line)
        assert line.split()[0] == KEY.name
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


@contextmanager
def _watching(
    plane: PlaneProcess, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    with subprocess.Popen(
        [str(KVPLANE), *arguments, "--plane", plane.target],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, iter(process.stdout)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        ["engines", "list"],
        ["leases", "watch"],
        ["sessions", "watch"],
        ["sessions", "get", "default:m::s"],
        ["explain", "--model", "m"],
    ],
)
def test_absent_plane_is_one_line(arguments: list[str]) -> None:
    """Without a plane each command ends with 1 and says where it looked and what to do."""
    done = subprocess.run(
        [str(KVPLANE), *arguments, "--plane", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kvplane: no plane answers at 127.0.0.1:1: start one with `kvplane up`")


def test_reader_that_goes_away_is_no_error(plane: PlaneProcess) -> None:
    """`kvplane ... | head` ends quietly."""
    command = f"{KVPLANE} engines list --output json --plane {plane.target} | true"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_services_of_a_split_deployment_are_addressed_apart(plane: PlaneProcess) -> None:
    """An address of one service's own overrides that of the plane."""
    elsewhere = {"KVPLANE_PLANE": "127.0.0.1:1"}
    for arguments in (
        ["engines", "list", "--leases", plane.target],
        ["leases", "list", "--leases", plane.target],
        ["sessions", "list", "--registry", plane.target],
        ["explain", "--model", "m", "--router", plane.target],
    ):
        result = CliRunner().invoke(create_app(), arguments, env=elsewhere)
        assert result.exit_code == 0, result.output


def test_help_is_fast_and_needs_no_extra(tmp_path: Path) -> None:
    """`kvplane --help` imports neither gRPC nor an extra's library, and is there at once."""
    program = (
        "import sys\n"
        "sys.argv = ['kvplane', '--help']\n"
        "from kvplane_services.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'grpc', 'aiohttp', 'msgspec', 'openai', 'pydantic'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.stderr.strip() == "[]"
    for command in ("up", "engines", "leases", "sessions", "explain", "sim-engine", "demo"):
        assert command in done.stdout
