"""`kvplane bench scale` on a small scale: it measures, it does not judge."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import etcd_binary, running_node
from tests.support.programs import KVPLANE

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


def bench(*arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """Runs the command with 60 sessions on 3 engines, with the shortest leases."""
    return subprocess.run(
        [
            *(str(KVPLANE), "bench", "scale", "--sessions", "60", "--engines", "3"),
            *("--seconds", "1", "--lease-ttl", "6", *arguments),
        ],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def figures_of(result: subprocess.CompletedProcess[str], file: Path) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert document.keys() >= FIGURES
    assert document["grants_per_s"] > 0
    assert document["renewals_per_s"] > 0
    assert document["supersedes_per_s"] > 0
    assert document["watch_lag_ms_p99"] >= document["watch_lag_ms_p50"] > 0
    return document


@pytest.mark.timeout(120)
def test_the_embedded_store_is_measured(tmp_path: Path) -> None:
    """On memory every figure is there, in the table and the file, and nothing is left behind."""
    file = tmp_path / "scale.json"
    result = bench("--store", "memory", "--json", str(file))
    document = figures_of(result, file)
    assert document["load"]["sessions"] == 60
    assert "grants_per_s" in result.stdout
    assert "granting 60 leases" in result.stderr


@pytest.mark.timeout(120)
def test_a_private_etcd_is_started_and_measured(tmp_path: Path) -> None:
    """On etcd renewals cost it no write, and another replica shows what is granted."""
    file = tmp_path / "scale.json"
    path = os.pathsep.join((str(etcd_binary().parent), os.environ["PATH"]))
    document = figures_of(bench("--store", "etcd", "--json", str(file), path=path), file)
    assert document["etcd_writes_per_renewal"] < 0.05
    assert document["versions"]["etcd"].startswith("3.")
    assert document["etcd_db_bytes"] > 0


@pytest.mark.timeout(120)
def test_an_etcd_that_runs_is_left_as_it_was(tmp_path: Path) -> None:
    """A given etcd is used under a prefix of its own, which is empty afterwards."""
    file = tmp_path / "scale.json"
    with running_node() as etcd:
        result = bench(
            *("--store", f"etcd://{etcd.endpoint}", "--replicas", "2", "--json", str(file))
        )
        figures_of(result, file)
        # Every key there is: from "\0" to "\0".
        left = etcd.call("kv/range", {"key": "AA==", "range_end": "AA==", "count_only": True})
    assert int(left.get("count", 0)) == 0


def test_without_etcd_one_line_says_what_to_do(tmp_path: Path) -> None:
    """Where there is no etcd the command ends at once and names the ways out."""
    result = bench("--store", "etcd", "--log-dir", str(tmp_path), path="/nowhere")
    assert result.returncode == 1
    assert "apt-get install etcd-server" in result.stderr
    assert "Traceback" not in result.stderr
