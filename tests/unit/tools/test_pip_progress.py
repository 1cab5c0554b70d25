from pathlib import Path

import pytest

from pip_progress import LOG, explain


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Retrying after connection broken by 'NewConnectionError('Failed to establish')'",
        "WARNING: Retrying after connection broken by 'ProxyError('Cannot connect to proxy.')'",
        "ERROR: Could not install packages: HTTPSConnectionPool: Max retries exceeded with url",
    ],
)
def test_unreachable_index_is_named(line: str) -> None:
    """Whatever pip makes of it later, a broken connection is said to be one."""
    said = explain([line, "ERROR: No matching distribution found for aiohttp==3.14.5"])
    assert said.startswith("the package index cannot be reached")
    assert str(LOG) in said
    assert "\n" not in said


def test_last_error_is_the_reason() -> None:
    """Of several errors the last one, which pip stops at, is told."""
    lines = [
        "Collecting torch==2.13.0+cpu",
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu",
        "ERROR: No matching distribution found for torch==2.13.0+cpu",
        "WARNING: something about versions",
    ]
    assert explain(lines).startswith("No matching distribution found for torch==2.13.0+cpu")


def test_silence_is_told() -> None:
    """A pip that died without a word still gives a line."""
    assert explain([]) == f"pip said nothing (pip's output is in {LOG})"


def test_log_stays_in_the_checkout() -> None:
    """pip's output lies among what `make clean` removes."""
    assert LOG.parts[0] == ".build"
    assert not Path(LOG).is_absolute()
