"""What operators read of engines."""

import logging

import pytest

from tests.support.engine_fleet import Fleet


async def test_the_log_tells_what_becomes_of_an_engine(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each, with name, epoch and replica."""
    caplog.set_level(logging.INFO, logger="kvplane_services.engine")
    engine = await fleet.register(0)
    await fleet.beat(1, engine)
    await fleet.settle()
    await fleet.advance(16)
    again = await fleet.register(2)
    await fleet.planes[2].directory.deregister("d0", again.epoch)

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    for what, epoch, replica in (
        ("registered", engine.epoch, "replica-0"),
        ("moved home", engine.epoch, "replica-1"),
        ("moved away", engine.epoch, "replica-0"),
        ("is lost", engine.epoch, "replica-1"),
        ("deregistered", again.epoch, "replica-2"),
    ):
        assert [
            line
            for line in lines
            if what in line and "engines/d0" in line and str(epoch) in line and replica in line
        ], what
