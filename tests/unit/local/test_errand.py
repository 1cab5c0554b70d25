from pathlib import Path

import pytest

from kvplane_services.local.errand import Progress, run_errand
from tests.support.clock import FakeClock


class Expected(Exception):
    """What users can do something about."""


async def errand(error: BaseException | None, folder: Path) -> int:
    async def work(logs: Path, say: Progress) -> int:
        assert logs == folder
        say("working")
        if error is not None:
            raise error
        return 7

    return await run_errand("try", work, known=(Expected,), log_dir=folder, clock=FakeClock())


async def test_the_work_says_how_it_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code is the command's, and progress and logs are told on stderr."""
    assert await errand(None, tmp_path / "logs") == 7

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["[   0.0 s] working", f"[   0.0 s] logs are in {tmp_path}/logs"]


@pytest.mark.parametrize(
    "error",
    [
        Expected("there is no etcd"),
        ExceptionGroup("tasks", [ExceptionGroup("more", [Expected("there is no etcd")])]),
    ],
)
async def test_a_known_error_is_one_line(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a group of tasks failed with it."""
    assert await errand(error, tmp_path) == 1

    assert "kvplane try: there is no etcd" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    "error", [KeyError("a"), ExceptionGroup("tasks", [Expected("known"), KeyError("a")])]
)
async def test_a_bug_is_raised(error: Exception, tmp_path: Path) -> None:
    """A group that has another error in it is one, too."""
    with pytest.raises(type(error)) as raised:
        await errand(error, tmp_path)

    assert raised.value is error
