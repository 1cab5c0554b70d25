"""Simulated engines and a real plane: registration, silence, and names that are taken."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvplane.api.engine.v1.engine_pb2 import Engine
from kvplane.client.sync import SyncPlane
from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from tests.support.plane_process import PlaneProcess
from tests.support.programs import Program, wait_until
from tests.support.sim_engines import SimProcess, start_sim
from tests.support.vllm_engines import MODEL, ask

_SETTINGS = """
[registration]
ttl = 3
heartbeat_interval = 0.25
"""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[PlaneProcess]:
    plane = PlaneProcess(tmp_path, _SETTINGS)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def engine(plane: PlaneProcess, tmp_path: Path) -> Iterator[SimProcess]:
    started = start_sim(
        "decode", plane=plane.target, folder=tmp_path, options=("--label", "zone=a")
    )
    yield started
    started.program.kill()


def _registered(plane: PlaneProcess) -> list[Engine]:
    with SyncPlane(plane.target) as client:
        return list(client.each(client.engines.list()))


def _wait_for_state(plane: PlaneProcess, state: "Engine.State.ValueType") -> None:
    wait_until(
        lambda: [one.state for one in _registered(plane)] == [state], seconds=10, what=str(state)
    )


def _set(engine: SimProcess, *faults: dict[str, Any]) -> None:
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{engine.url}/sim/faults",
        json.dumps({"faults": faults}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 - loopback


def test_an_engine_registers_and_takes_its_registration_back(
    plane: PlaneProcess, engine: SimProcess
) -> None:
    """All that the plane asks for is told; a clean stop deregisters at once."""
    _wait_for_state(plane, Engine.STATE_ACTIVE)
    (one,) = _registered(plane)

    assert one.name == "engines/decode-0"
    assert one.endpoint == engine.url
    assert list(one.models) == [MODEL]
    assert dict(one.labels) == {"zone": "a"}
    assert (one.layout.block_size, one.layout.total_blocks) == (16, 16384)
    assert one.nixl.port > 0
    assert engine.program.stop() == 0
    assert _registered(plane) == []


def test_a_silent_engine_is_lost_and_comes_back_with_what_it_holds(
    plane: PlaneProcess, engine: SimProcess
) -> None:
    """Muted past its TTL an engine is lost; once it speaks again its leases are back."""
    _wait_for_state(plane, Engine.STATE_ACTIVE)
    mark = TurnMark("t", MODEL, "", "s")
    ask(engine, [{"role": "user", "content": "hi"}], params={**LOCAL_ONLY, KEY: mark.encode()})

    def sessions() -> list[str]:
        with SyncPlane(plane.target) as client:
            return [one.session_key.session_id for one in client.each(client.leases.list())]

    wait_until(lambda: sessions() == ["s"], seconds=5, what="a lease")
    _set(engine, {"kind": "silent"})
    _wait_for_state(plane, Engine.STATE_LOST)

    _set(engine)
    _wait_for_state(plane, Engine.STATE_ACTIVE)
    wait_until(lambda: sessions() == ["s"], seconds=10, what="the lease is back")


def test_a_name_that_another_engine_took_ends_the_first(
    plane: PlaneProcess, engine: SimProcess, tmp_path: Path
) -> None:
    """The engine whose name is registered anew stops, with a line that says why."""
    _wait_for_state(plane, Engine.STATE_ACTIVE)
    second = Program(
        *("sim-engine", "--role", "decode", "--http", "127.0.0.1:0", "--plane", plane.target),
        *("--engine-id", "decode-0"),
        log=tmp_path / "second.log",
    )
    try:
        second.wait_for(r"ready on (\S+)")
        wait_until(lambda: engine.program.exit_code is not None, seconds=10, what="the first ends")
        assert engine.program.exit_code == 1
        assert "another registration" in engine.program.output
        assert "Traceback" not in engine.program.output
    finally:
        second.kill()


def test_a_taken_port_is_said_in_one_line(engine: SimProcess, tmp_path: Path) -> None:
    """An address that is in use ends the program with a clear line."""
    address = engine.url.removeprefix("http://")
    second = Program("sim-engine", "--http", address, log=tmp_path / "second.log")
    wait_until(lambda: second.exit_code is not None, seconds=10, what="it ends")

    assert second.exit_code == 1
    assert "in use" in second.output
    assert "Traceback" not in second.output
