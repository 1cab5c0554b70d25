"""Which errors are one line, and which line."""

import pytest

from kvplane.client.errors import NotFoundError, SaturatedError, UnavailableError
from kvplane_services.cli.failures import describe
from kvplane_services.errors import InvalidRequest


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InvalidRequest("the engine\nhas no role"), "the engine has no role"),
        (NotFoundError("no such lease", code="NOT_FOUND"), "no such lease"),
        (
            SaturatedError("all engines are full", code="RESOURCE_EXHAUSTED", retry_after=1.5),
            "all engines are full (retry in 1.5 s)",
        ),
        (
            ModuleNotFoundError("no aiohttp", name="aiohttp.web"),
            "this command needs aiohttp, which is not installed: pip install 'kvplane[gateway]'",
        ),
        (FileNotFoundError(2, "No such file or directory", "a.toml"), "a.toml: No such file"),
        (OSError("cannot listen on 127.0.0.1:1"), "cannot listen on 127.0.0.1:1"),
        (ExceptionGroup("tasks", [ValueError(), InvalidRequest("bad")]), "bad"),
    ],
)
def test_known_errors_are_one_line(error: Exception, line: str) -> None:
    """Each error that users can do something about is told in one line, with exit code 1."""
    failure = describe(error)
    assert failure is not None
    assert failure.line.startswith(line)
    assert failure.exit_code == 1


def test_absent_plane_says_what_was_tried_and_what_to_do() -> None:
    """The line names the address, the command that starts a plane, and the option."""
    error = UnavailableError("refused", code="UNAVAILABLE", metadata={"target": "127.0.0.1:7000"})
    failure = describe(error)
    assert failure is not None
    for part in ("127.0.0.1:7000", "kvplane up", "--plane", "KVPLANE_PLANE"):
        assert part in failure.line


def test_plane_that_cannot_serve_now_is_there() -> None:
    """An UNAVAILABLE with the plane's own reason is told as the plane put it."""
    error = UnavailableError(
        "no engine serves m",
        code="UNAVAILABLE",
        reason="UNAVAILABLE",
        retry_after=2.0,
        metadata={"target": "127.0.0.1:7000"},
    )
    failure = describe(error)
    assert failure is not None
    assert failure.line == "no engine serves m (retry in 2 s)"


@pytest.mark.parametrize(
    "error",
    [ValueError("a bug"), ModuleNotFoundError("ours", name="kvplane_services.typo"), KeyError("x")],
)
def test_bugs_keep_their_traceback(error: Exception) -> None:
    """What nobody expects is not dressed up."""
    assert describe(error) is None
