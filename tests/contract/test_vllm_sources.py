"""What the connector relies on of vLLM, in the sources of each version that it supports."""

from itertools import pairwise
from pathlib import Path

import griffe
import pytest
from packaging.version import Version

from kvplane_connector.versions import NEWER, NEWER_SINCE, OLDEST
from tests.support.vllm_shapes import Reliance, differences, load_vllm

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "connector" / "kvplane_connector"
# Made by `make vllm-sources`, which the commands that run these tests do first.
SOURCES = ROOT / ".build" / "vllm-sources"
VERSIONS = sorted((path.parent.name for path in SOURCES.glob("*/wanted")), key=Version)
WORKER = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_worker.py"


@pytest.fixture(scope="module")
def relied_on() -> Reliance:
    """What the connector relies on."""
    return Reliance(PACKAGE)


@pytest.fixture(scope="module")
def newest() -> griffe.Object:
    """The newest vLLM."""
    return load_vllm(SOURCES / VERSIONS[-1])


def test_the_sources_of_every_minor_version_are_there() -> None:
    """From the oldest supported version on none is left out."""
    minors = [Version(one).release[:2] for one in VERSIONS]

    assert minors, "run `make vllm-sources`"
    assert minors[0] == OLDEST
    assert len(minors) > 1
    assert all(
        after in ((before[0], before[1] + 1), (before[0] + 1, 0))
        for before, after in pairwise(minors)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_has_what_is_relied_on(relied_on: Reliance, version: str) -> None:
    """Names, members and parameters are vLLM's, but for what `versions.py` says of older ones."""
    wrong = differences(relied_on, load_vllm(SOURCES / version))

    if Version(version).release[:2] >= NEWER_SINCE:
        assert wrong == {}
    else:
        assert wrong.keys() == NEWER, wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stop_is_seen_at_the_engine_core(version: str) -> None:
    """Every loop takes its input in one place, after which a pause or a shutdown shows."""
    core = (SOURCES / version / "vllm/v1/engine/core.py").read_text()
    pauses = (SOURCES / version / "vllm/v1/core/sched/interface.py").read_text()

    loops = core.split("def run_busy_loop(")[1:]
    assert loops
    assert all("self._process_input_queue()" in one for one in loops)
    assert core.count("def _process_input_queue(") == 1
    assert "return self.shutdown_state == EngineShutdownState.RUNNING" in core
    assert "UNPAUSED = 0" in pauses
    assert "def pause_state(self)" in pauses


def test_reads_name_their_arguments() -> None:
    """The worker takes arguments of reads by name, and every vLLM that validates passes them so."""
    for version in VERSIONS:
        if Version(version).release[:2] < NEWER_SINCE:
            continue
        code = (SOURCES / version / WORKER).read_text()
        call = code.partition("self._read_blocks(")[2].partition("):")[0]
        for name in ("read_spec", "request_id", "dst_engine_id"):
            assert f"{name}=" in call, version


@pytest.mark.parametrize(
    ("module", "old", "new", "noticed"),
    [
        ("vllm_names", "_reqs_to_send:", "_reqs_to_ship:", "NixlPullConnectorWorker._reqs_to_ship"),
        (
            "vllm_names",
            "def on_new_request(self, request: Any)",
            "def on_new_request(self, request: Any, now: float)",
            "NixlPullConnectorScheduler.on_new_request",
        ),
        ("vllm_names", "NixlPromMetrics", "NixlMetrics", "NixlMetrics"),
        ("request_context", "request.cache_salt", "request.pepper", "Request.pepper"),
        ("worker", "def take_news(", "def get_finished(", "KvplaneWorker.get_finished"),
    ],
)
def test_what_vllm_has_not_got_is_noticed(
    tmp_path: Path, newest: griffe.Object, module: str, old: str, new: str, noticed: str
) -> None:
    """A name, a parameter or an attribute that no vLLM has is named, and nothing else."""
    for path in PACKAGE.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    code = (tmp_path / f"{module}.py").read_text()
    assert old in code
    (tmp_path / f"{module}.py").write_text(code.replace(old, new))

    assert set(differences(Reliance(tmp_path), newest)) == {noticed}
