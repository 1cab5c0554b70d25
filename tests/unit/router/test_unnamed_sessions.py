"""Decisions for turns whose session nobody named."""

import json

from kvplane_services.lease.model import EndReason
from kvplane_services.router.model import (
    DecisionReason,
    RouteOutcome,
    Strategy,
    Subject,
)
from tests.unit.router.fleet import (
    Fleet,
    decode,
    done,
    key,
    lease,
    prefill,
    subject,
)


class TestUnnamedSessions:
    async def test_next_turn_is_recognised_by_its_prefix(self) -> None:
        """The session of the longest known message prefix goes on."""
        fleet = Fleet(prefill(), decode())
        first = await fleet.router.decide(subject("", b"1"))
        assert first.session_key.session_id.startswith("auto-")
        fleet.grant(
            lease(
                first.session_key.session_id,
                decision_id=first.decision_id,
                message_digest=b"1",
            )
        )
        await fleet.router.report(done(first))
        second = await fleet.router.decide(subject("", b"1", b"2", b"3"))
        assert second.session_key == first.session_key
        assert second.strategy is Strategy.PULL
        mark = json.loads(second.decode.kv_transfer_params)["kvplane"]
        assert mark["message_digest"] == b"3".hex()

    async def test_longest_prefix_wins(self) -> None:
        """Of two known prefixes the longer one names the session."""
        fleet = Fleet(prefill(), decode())
        fleet.grant(lease("short", lease_id="a", message_digest=b"1"))
        fleet.grant(lease("long", lease_id="b", message_digest=b"2"))
        decision = await fleet.router.decide(subject("", b"1", b"2", b"3"))
        assert decision.session_key.session_id == "long"

    async def test_retry_is_the_same_session(self) -> None:
        """The same messages again, after the first attempt ended, are the same session."""
        fleet = Fleet(prefill(), decode())
        first = await fleet.router.decide(subject("", b"1"))
        await fleet.router.report(done(first, RouteOutcome.FAILED))
        again = await fleet.router.decide(subject("", b"1"))
        assert again.session_key == first.session_key

    async def test_fork_reads_and_leaves_its_own(self) -> None:
        """A second turn on messages in flight reads the same lease under a new session."""
        fleet = Fleet(prefill(), decode())
        fleet.grant(lease("auto-x", message_digest=b"1"))
        one = await fleet.router.decide(subject("", b"1", b"2"))
        two = await fleet.router.decide(subject("", b"1", b"2"))
        assert one.session_key.session_id == "auto-x"
        assert two.session_key != one.session_key
        assert one.lease == two.lease == "leases/l1"

    async def test_ended_lease_still_names_the_session(self) -> None:
        """A session whose lease ended is recognised, and says why it recomputes."""
        fleet = Fleet(prefill(), decode())
        fleet.end(fleet.grant(lease("auto-x", message_digest=b"1")), EndReason.EXPIRED)
        decision = await fleet.router.decide(subject("", b"1", b"2"))
        assert decision.session_key.session_id == "auto-x"
        assert decision.reason is DecisionReason.LEASE_ENDED

    async def test_other_tenants_and_models_are_apart(self) -> None:
        """Digests of another tenant or model recognise nothing."""
        fleet = Fleet(prefill(), decode())
        fleet.grant(lease("auto-x", message_digest=b"1"))
        other = Subject(session_key=key("", tenant="u"), message_digests=(b"1", b"2"))
        decision = await fleet.router.decide(other)
        assert decision.session_key.session_id != "auto-x"
        assert decision.strategy is Strategy.RECOMPUTE

    async def test_named_session_is_not_looked_up(self) -> None:
        """A client's own session id wins over its messages."""
        fleet = Fleet(prefill(), decode())
        fleet.grant(lease("auto-x", message_digest=b"1"))
        decision = await fleet.router.decide(subject("mine", b"1", b"2"))
        assert decision.session_key.session_id == "mine"
        assert decision.strategy is Strategy.RECOMPUTE
