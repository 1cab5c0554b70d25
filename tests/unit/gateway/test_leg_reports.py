from kvplane_services.errors import Unavailable
from kvplane_services.gateway.instruments import Instruments
from kvplane_services.gateway.leg_reports import LegReports, OpenLeg
from kvplane_services.router.model import (
    Decision,
    DecisionReason,
    Leg,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
)
from kvplane_services.session.model import SessionKey
from kvplane_services.telemetry import Telemetry
from tests.support.clock import FakeClock

DECISION = Decision(
    decision_id="d",
    strategy=Strategy.LOCAL,
    reason=DecisionReason.NO_LEASE,
    details="",
    prefill=None,
    decode=Leg(engine="engines/d", epoch=1, endpoint="http://d", kv_transfer_params=b"{}"),
    session_key=SessionKey("t", "m", "", "s"),
)


class Router:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.reports: list[LegReport] = []

    async def decide(self, subject: object, **_: object) -> Decision:
        raise AssertionError("reports need no decision")

    async def report(self, report: LegReport) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.reports.append(report)

    async def models(self) -> tuple[str, ...]:
        return ()


def open_leg(reports: LegReports, clock: FakeClock, telemetry: Telemetry) -> OpenLeg:
    return OpenLeg(
        decision=DECISION,
        kind=LegKind.DECODE,
        reports=reports,
        clock=clock,
        instruments=Instruments.of(telemetry),
    )


async def test_leg_is_reported_once_with_its_durations() -> None:
    """The first end counts, and durations run from the start of the leg."""
    router, clock, telemetry = Router(), FakeClock(), Telemetry()
    reports = LegReports(router=router)
    async with reports.running():
        leg = open_leg(reports, clock, telemetry)
        leg.start()
        await clock.advance(0.5)
        leg.note_first_byte()
        await clock.advance(1.0)
        leg.note_first_byte()
        leg.end(RouteOutcome.SUCCEEDED, output_tokens=7)
        leg.end(RouteOutcome.CANCELLED)
    text = telemetry.render().decode()
    telemetry.close()

    assert router.reports == [
        LegReport(
            decision_id="d",
            leg=LegKind.DECODE,
            outcome=RouteOutcome.SUCCEEDED,
            time_to_first_byte=0.5,
            duration=1.5,
            output_tokens=7,
        )
    ]
    assert 'kvplane_legs_in_flight{leg="decode"} 0.0' in text


async def test_leg_that_never_ran_has_no_durations() -> None:
    """Ending a leg that was not sent counts nothing in flight."""
    router, telemetry = Router(), Telemetry()
    reports = LegReports(router=router)
    async with reports.running():
        open_leg(reports, FakeClock(), telemetry).end(RouteOutcome.CANCELLED)
    text = telemetry.render().decode()
    telemetry.close()

    assert [(one.duration, one.time_to_first_byte) for one in router.reports] == [(0.0, 0.0)]
    assert "kvplane_legs_in_flight{" not in text


async def test_router_that_fails_stops_no_later_report() -> None:
    """Neither an expected error nor a bug of the router ends the delivery."""
    router = Router(Unavailable("away", retry_after=1.0), ZeroDivisionError())
    reports = LegReports(router=router)
    async with reports.running():
        for duration in (1.0, 2.0, 3.0):
            reports.send(
                LegReport(
                    decision_id="d",
                    leg=LegKind.DECODE,
                    outcome=RouteOutcome.SUCCEEDED,
                    duration=duration,
                )
            )

    assert [one.duration for one in router.reports] == [3.0]
