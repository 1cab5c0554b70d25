"""How trouble with the plane is logged."""

import logging
from collections.abc import Callable

import pytest

from kvplane.client.errors import FailedPreconditionError, UnavailableError
from kvplane.client.outage import Outage


def away(message: str) -> UnavailableError:
    return UnavailableError(message, code="UNAVAILABLE")


def test_trouble_is_said_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred failed attempts are one line; another error, the end and a relapse one each."""
    outage = Outage(log=logging.getLogger("test"), who="decode-0", target="plane:1")
    with caplog.at_level("INFO"):
        outage.over()
        for _ in range(100):
            outage.goes_on(away("refused"), at="plane:1", to="plane:1")
        outage.goes_on(away("reset"), at="plane:1", to="plane:1")
        outage.over()
        outage.over()
        outage.goes_on(away("reset"), at="plane:1", to="plane:1")
    said = [(record.levelname, record.message.rsplit(": ", 1)[-1]) for record in caplog.records]
    assert said == [
        ("WARNING", "refused"),
        ("WARNING", "reset"),
        ("INFO", "the plane at plane:1 is back"),
        ("WARNING", "reset"),
    ]
    assert all("decode-0" in record.message for record in caplog.records)


@pytest.fixture
def outage() -> Outage:
    return Outage(log=logging.getLogger("test"), who="decode-0", target="a:1,b:1,c:1")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    caplog.set_level("INFO")
    return lambda: [(record.levelname, record.message) for record in caplog.records]


def test_a_replica_that_fails_is_no_outage(
    outage: Outage, said: Callable[[], list[tuple[str, str]]]
) -> None:
    """It is named, with the one gone to; while another answers there is nothing to warn of."""
    for _ in range(2):
        outage.goes_on(away("refused"), at="b:1", to="c:1")
        outage.over()
    assert (
        said()
        == [
            (
                "INFO",
                "decode-0: no link to the replica at b:1, going on at c:1: UNAVAILABLE: refused",
            )
        ]
        * 2
    )


def test_replicas_that_all_fail_are_warned_of_once(
    outage: Outage, said: Callable[[], list[tuple[str, str]]]
) -> None:
    """Each says of itself why: that alone is no news at the next attempt."""
    for _ in range(100):
        for at, to in (("a:1", "b:1"), ("b:1", "c:1"), ("c:1", "a:1")):
            outage.goes_on(away(f"{at} refused"), at=at, to=to)
    outage.over()
    outage.over()
    assert [level for level, _ in said()] == ["INFO", "INFO", "WARNING", "INFO"]
    assert said()[2:] == [
        (
            "WARNING",
            "decode-0: no link to the plane at a:1,b:1,c:1, trying on: UNAVAILABLE: c:1 refused",
        ),
        ("INFO", "decode-0: the plane at a:1,b:1,c:1 is back"),
    ]


def test_what_every_replica_would_refuse_is_warned_of(
    outage: Outage, said: Callable[[], list[tuple[str, str]]]
) -> None:
    """It is not tried elsewhere."""
    error = FailedPreconditionError("too old", code="FAILED_PRECONDITION")
    outage.goes_on(error, at="a:1", to="a:1")
    assert [level for level, _ in said()] == ["WARNING"]
