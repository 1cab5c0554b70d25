"""Which etcd the benchmark starts."""

from pathlib import Path

import pytest

from kvplane_services.bench import etcd_server
from kvplane_services.bench.load_engine import BenchError


def test_etcd_is_taken_from_path_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a user's shell finds is what is measured."""
    program = tmp_path / "etcd"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert etcd_server.find_etcd() == str(program)


def test_where_there_is_no_etcd_the_ways_out_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is downloaded behind anybody's back."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(etcd_server, "_MADE", str(tmp_path))
    with pytest.raises(BenchError, match=r"apt-get install etcd-server.*--store memory"):
        etcd_server.find_etcd()
