"""`kvplane bench scale` on a small scale: it measures, it does not judge."""

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvplane_services.bench.command import run_scale
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.options import ScaleOptions
from kvplane_services.bench.phases import Phases
from tests.support.etcd import etcd_binary, running_node
from tests.support.programs import KVPLANE

pytestmark = pytest.mark.timeout(180)

FIGURES = {
    "grants_per_s",
    "supersedes_per_s",
    "renewals_per_s",
    "etcd_writes_per_renewal",
    "watch_lag_ms_p50",
    "watch_lag_ms_p99",
    "bytes_per_session",
    "cpu_s_per_1000_grants",
    "cpu_s_per_1000_renewals",
}


def bench(*arguments: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    """Runs the command with 60 sessions on 3 engines, with the shortest leases."""
    return subprocess.run(
        [
            *(str(KVPLANE), "bench", "scale", "--sessions", "60", "--engines", "3"),
            *("--seconds", "1", "--lease-ttl", "6", *arguments),
        ],
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, Future[tuple[subprocess.CompletedProcess[str], Path]]]:
    """All runs, at once: they wait for leases to fall due most of the time."""
    folder = tmp_path_factory.mktemp("bench")

    def run(
        name: str, *arguments: str, path: str = "/usr/bin:/bin"
    ) -> tuple[subprocess.CompletedProcess[str], Path]:
        file = folder / f"{name}.json"
        return bench(*arguments, "--json", str(file), path=path), file

    def run_on_etcd() -> tuple[subprocess.CompletedProcess[str], Path]:
        with running_node() as etcd:
            store = f"etcd://{etcd.endpoint}"
            result = run("given", "--store", store, "--replicas", "2")
            # Every key there is: from "\0" to "\0".
            left = etcd.call("kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
        assert int(left.get("count", 0)) == 0
        return result

    pool = ThreadPoolExecutor(3)
    with_etcd = f"{etcd_binary().parent}:/usr/bin:/bin"
    found = {
        "memory": pool.submit(run, "memory", "--store", "memory"),
        "private": pool.submit(run, "private", "--store", "etcd", path=with_etcd),
        "given": pool.submit(run_on_etcd),
    }
    pool.shutdown(wait=False)
    return found


def figures_of(run: Future[tuple[subprocess.CompletedProcess[str], Path]]) -> dict[str, Any]:
    result, file = run.result()
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert document.keys() >= FIGURES
    assert document["grants_per_s"] > 0
    assert document["renewals_per_s"] > 0
    assert document["supersedes_per_s"] > 0
    assert document["watch_lag_ms_p99"] >= document["watch_lag_ms_p50"] > 0
    return document


def test_the_embedded_store_is_measured(runs: Any) -> None:
    """On memory every figure is there, in the table and the file."""
    document = figures_of(runs["memory"])
    result, _ = runs["memory"].result()
    assert document["load"]["sessions"] == 60
    assert "grants_per_s" in result.stdout
    assert "granting 60 leases" in result.stderr


def test_a_private_etcd_is_started_and_measured(runs: Any) -> None:
    """On etcd renewals cost it next to no write, and another replica shows what is granted."""
    document = figures_of(runs["private"])
    assert document["etcd_writes_per_renewal"] < 0.2
    assert document["versions"]["etcd"].startswith("3.")
    assert document["etcd_db_bytes"] > 0


def test_an_etcd_that_runs_is_left_as_it_was(runs: Any) -> None:
    """A given etcd is used under a prefix of its own, which is empty afterwards."""
    assert figures_of(runs["given"])["load"]["replicas"] == 2


def test_an_etcd_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """Where nobody answers the command ends with one line, and starts nothing."""
    result = bench("--store", "etcd://127.0.0.1:1", "--log-dir", str(tmp_path))
    assert result.returncode == 1
    assert "kvplane bench: etcd at 127.0.0.1:1 cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


async def test_what_was_measured_before_a_failure_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that breaks off in its last part leaves the figures of the others, and says why."""

    async def fail(phases: Phases) -> None:
        raise BenchError("no lease was renewed within 2 s")

    monkeypatch.setattr(Phases, "renewals", fail)
    file = tmp_path / "scale.json"
    options = ScaleOptions(
        sessions=20, engines=2, store="memory", replicas=1, seconds=1, tokens=64, lease_ttl=6
    )

    code = await run_scale(options, json_file=file, log_dir=tmp_path)

    document = json.loads(file.read_text(encoding="utf-8"))
    assert code == 1
    assert document["failure"] == "no lease was renewed within 2 s"
    assert document["grants_per_s"] > 0
