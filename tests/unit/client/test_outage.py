"""How trouble with the plane is logged."""

import logging

import pytest

from kvplane.client.errors import UnavailableError
from kvplane.client.outage import Outage


def test_trouble_is_said_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred failed attempts are one line; another error, the end and a relapse one each."""
    outage = Outage(log=logging.getLogger("test"), who="decode-0", target="plane:1")
    with caplog.at_level("INFO"):
        outage.over()
        for _ in range(100):
            outage.goes_on(UnavailableError("refused", code="UNAVAILABLE"))
        outage.goes_on(UnavailableError("reset", code="UNAVAILABLE"))
        outage.over()
        outage.over()
        outage.goes_on(UnavailableError("reset", code="UNAVAILABLE"))
    said = [(record.levelname, record.message.rsplit(": ", 1)[-1]) for record in caplog.records]
    assert said == [
        ("WARNING", "refused"),
        ("WARNING", "reset"),
        ("INFO", "the plane at plane:1 is back"),
        ("WARNING", "reset"),
    ]
    assert all("decode-0" in record.message for record in caplog.records)
