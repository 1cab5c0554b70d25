from pathlib import Path

import pytest

import vllm_sources


def test_the_newest_patch_of_each_minor_version_is_read() -> None:
    """Versions before the oldest supported one, earlier patches and pre-releases are left out."""
    released = ["0.33.0rc1", "0.32.0", "1.0.0", "0.27.1", "0.27.0", "0.26.10", "0.26.9", "0.25.1"]

    assert vllm_sources.newest_patches(released) == ["0.26.10", "0.27.1", "0.32.0", "1.0.0"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_worker.py", True),
        ("vllm/v1/request.py", True),
        ("vllm/v1/core/__init__.py", True),
        ("vllm/__init__.py", True),
        ("vllm/model_executor/__init__.py", False),
        ("vllm/v1/sample/sampler.py", False),
        ("vllm/_C.abi3.so", False),
    ],
)
def test_of_a_wheel_only_what_is_asked_about_is_read(name: str, *, wanted: bool) -> None:
    """Modules that the connector touches are, with the packages that they are in."""
    assert vllm_sources.is_wanted(name) == wanted


def test_what_was_fetched_is_used_without_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index that cannot be asked stops nobody who has asked it before, and says so."""
    monkeypatch.setattr(vllm_sources, "FOLDER", tmp_path)

    def away() -> list[str]:
        raise vllm_sources.Missing("pip index failed: no route")

    monkeypatch.setattr(vllm_sources, "released", away)
    assert vllm_sources.main() == 1

    (tmp_path / "0.30.0").mkdir()
    (tmp_path / "0.30.0" / "wanted").touch()
    assert vllm_sources.main() == 0
    assert "no route" in capsys.readouterr().err
