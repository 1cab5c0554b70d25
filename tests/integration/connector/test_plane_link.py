"""The connector's link thread and a plane, without vLLM."""

import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from kvplane.digest import context_of
from kvplane.transfer_params import TurnMark
from kvplane_connector.clock import EngineClock
from kvplane_connector.engine_facts import EngineFacts
from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.plane_link import PlaneLink
from kvplane_connector.retentions import RetainedTurn, RetentionLedger
from tests.support.recording_plane import RecordingPlane

NAME = "engines/d0"


@pytest.fixture
def plane() -> Iterator[RecordingPlane]:
    plane = RecordingPlane(lease_ttl=20, heartbeat_interval=0.05)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A port that becomes the engine's server once it listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield server


@pytest.fixture
def ledger() -> RetentionLedger:
    return RetentionLedger(ttl=30, clamp_ttl=lambda ttl: ttl)


@pytest.fixture
def link(
    plane: RecordingPlane, server: socket.socket, ledger: RetentionLedger
) -> Iterator[PlaneLink]:
    facts = EngineFacts(
        engine_id="d0",
        role="decode",
        endpoint=f"http://127.0.0.1:{server.getsockname()[1]}",
        models=("m",),
        labels={"zone": "a"},
        nixl_engine_id="n",
        block_size=16,
        kv_dtype="float32",
        tensor_parallel_size=1,
        data_parallel_rank=0,
        data_parallel_size=1,
        connector_version="0.1.0",
        vllm_version="0.32.0",
        nixl_version="1.5.1",
        nixl_connector_version=14,
    )
    blocks = KvBlocks()
    blocks.bind(SimpleNamespace(num_gpu_blocks=100, get_num_free_blocks=lambda: 90))
    load = LoadMeter(blocks)
    link = PlaneLink(
        target=plane.target, facts=facts, ledger=ledger, load=load, pause_after_failure=0.1
    )
    link.start(nixl_host="127.0.0.1", nixl_port=5600, compatibility_hash="abc")
    yield link
    link.stop()


def retained(name: str, session: str = "s") -> RetainedTurn:
    return RetainedTurn(
        retention_id=name,
        mark=TurnMark("", "m", "", session),
        token_ids=list(range(100)),
        context=context_of(),
        block_ids=frozenset(range(7)),
        block_size=16,
        kv_transfer_params={"do_remote_decode": True},
        expiry=EngineClock().now() + 10,
    )


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_engine_registers_once_its_server_listens(
    plane: RecordingPlane, server: socket.socket, link: PlaneLink
) -> None:
    """Nobody hears of an engine that cannot answer; then all its facts are told."""
    time.sleep(0.3)
    assert plane.registrations == []

    server.listen()

    plane.wait(lambda: bool(plane.registrations), seconds=5, what="the registration")
    engine = plane.registrations[0].engine
    assert (engine.role, engine.layout.total_blocks, engine.labels["zone"]) == (2, 99, "a")
    assert (engine.nixl.host, engine.nixl.port, engine.nixl.engine_id) == ("127.0.0.1", 5600, "n")
    assert engine.layout.compatibility_hash == "abc"


def test_a_retention_is_reported_and_renewed(
    plane: RecordingPlane, server: socket.socket, link: PlaneLink, ledger: RetentionLedger
) -> None:
    """The plane hears of it when told, its TTL is taken, and its renewal becomes an order."""
    server.listen()
    plane.heartbeat_interval = 60
    plane.wait(lambda: bool(plane.full_reports), seconds=5, what="the first report")

    ledger.begin(retained("r1"))
    link.notify()

    plane.wait(lambda: "r1" in plane.retentions, seconds=5, what="the retention")
    eventually(lambda: "r1" in ledger.take_orders())
    assert ledger.ttl == 20
    assert plane.loads[NAME].used_blocks == 9
    assert plane.loads[NAME].retained_blocks == 7


def test_a_stop_takes_the_registration_back(
    plane: RecordingPlane, server: socket.socket, link: PlaneLink
) -> None:
    """An engine that stops in order is gone from the plane at once."""
    server.listen()
    plane.wait(lambda: bool(plane.full_reports), seconds=5, what="the first report")

    link.stop()

    assert plane.deregistered == [NAME]


def test_what_cannot_be_reported_does_not_end_the_link(
    plane: RecordingPlane, server: socket.socket, link: PlaneLink, ledger: RetentionLedger
) -> None:
    """A failure within makes the link anew, and others are reported once its cause is over."""
    server.listen()
    plane.wait(lambda: bool(plane.full_reports), seconds=5, what="the first report")
    ledger.begin(retained("bad", session="\ud800"))
    ledger.begin(retained("good"))
    link.notify()
    time.sleep(0.3)
    assert "good" not in plane.retentions

    ledger.end("bad")

    plane.wait(lambda: "good" in plane.retentions, seconds=5, what="the other retention")
