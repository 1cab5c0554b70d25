import json
import uuid
from dataclasses import replace

import pytest

from kvplane_services.engine.model import ConnectorKind, Engine, EngineState, Role
from kvplane_services.errors import (
    InvalidRequest,
    NotFound,
    Saturated,
    StrategyImpossible,
    Unavailable,
)
from kvplane_services.lease.model import EndReason
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.model import (
    DecisionReason,
    LegKind,
    LegReport,
    RouteOutcome,
    Strategy,
    Subject,
)
from tests.unit.router.fleet import (
    HANDLE,
    Fleet,
    decode,
    done,
    engine,
    key,
    lease,
    prefill,
    subject,
)

R1, R2 = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


def params_of(leg: bytes) -> dict[str, object]:
    params = json.loads(leg)
    assert isinstance(params, dict)
    return params


async def test_first_turn_recomputes() -> None:
    """A session without a retention gets a prefill leg that reads nothing."""
    fleet = Fleet(prefill(), decode())
    decision = await fleet.router.decide(subject())
    assert (decision.strategy, decision.reason) == (Strategy.RECOMPUTE, DecisionReason.NO_LEASE)
    assert decision.prefill is not None
    assert params_of(decision.prefill.kv_transfer_params) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert params_of(decision.decode.kv_transfer_params) == {
        "kvplane": {
            "session": ["t", "m", "", "s"],
            "decision_id": decision.decision_id,
            "message_digest": "",
        }
    }
    assert (decision.lease, decision.waited) == ("", 0.0)


async def test_held_session_is_pulled() -> None:
    """A live lease gives PULL: the prefill leg carries its handle, unchanged but for the flags."""
    fleet = Fleet(prefill(), decode("d"), decode("e"))
    held = fleet.grant(lease(engine_id="e", token=7))
    decision = await fleet.router.decide(subject())
    assert (decision.strategy, decision.reason) == (Strategy.PULL, DecisionReason.LEASE_LIVE)
    assert decision.prefill is not None
    assert params_of(decision.prefill.kv_transfer_params) == HANDLE | {
        "do_remote_decode": True,
        "do_remote_prefill": False,
    }
    assert decision.decode.engine == "engines/e"
    assert (decision.lease, decision.fencing_token) == (held.name, 7)
    assert decision.held_tokens == 1000
    assert fleet.claims.held == [f"{held.name}@7"]


async def test_draining_holder_is_read_but_gets_no_turn() -> None:
    """P pulls from a draining engine while another engine decodes."""
    fleet = Fleet(prefill(), decode("d", state=EngineState.DRAINING), decode("e"))
    fleet.grant(lease(engine_id="d"))
    decision = await fleet.router.decide(subject())
    assert decision.strategy is Strategy.PULL
    assert decision.decode.engine == "engines/e"


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (decode("d", state=EngineState.LOST), "is lost"),
        (decode("d", epoch=0), "restarted since"),
        (None, "is not known"),
    ],
)
async def test_unreadable_holder_means_recompute(holder: Engine | None, words: str) -> None:
    """A retention on an engine that is lost, restarted or unknown is not handed out."""
    fleet = Fleet(prefill(), decode("e"))
    if holder is not None:
        fleet.put(holder)
    fleet.grant(lease(engine_id="d"))
    decision = await fleet.router.decide(subject())
    assert decision.strategy is Strategy.RECOMPUTE
    assert decision.reason is DecisionReason.HOLDER_UNAVAILABLE
    assert words in decision.details


async def test_excluded_holder_is_not_read() -> None:
    """An engine that the caller leaves out neither decodes nor is read."""
    fleet = Fleet(prefill(), decode("d"), decode("e"))
    fleet.grant(lease(engine_id="d"))
    decision = await fleet.router.decide(subject(), excluded={"engines/d"})
    assert decision.decode.engine == "engines/e"
    assert decision.reason is DecisionReason.HOLDER_UNAVAILABLE


async def test_short_history_is_recomputed() -> None:
    """A retention below min_pull_tokens is not worth a transfer; at the limit it is."""
    fleet = Fleet(prefill(), decode())
    fleet.grant(lease(tokens=63))
    decision = await fleet.router.decide(subject())
    assert decision.reason is DecisionReason.HISTORY_TOO_SHORT
    fleet.grant(lease(tokens=64))
    assert (await fleet.router.decide(subject())).strategy is Strategy.PULL


@pytest.mark.parametrize("handle", [b"[]", b"no json", b"[" * 1_000_000])
async def test_broken_handle_is_not_sent(handle: bytes) -> None:
    """A handle that is no JSON object, or nested too deep to read, is never handed out."""
    fleet = Fleet(prefill(), decode())
    fleet.grant(lease(handle=handle))
    decision = await fleet.router.decide(subject())
    assert decision.reason is DecisionReason.HOLDER_UNAVAILABLE


async def test_ended_lease_says_why() -> None:
    """After the end of a lease the decision names its reason."""
    fleet = Fleet(prefill(), decode())
    fleet.end(fleet.grant(lease()), EndReason.RECLAIMED)
    decision = await fleet.router.decide(subject())
    assert decision.reason is DecisionReason.LEASE_ENDED
    assert "reclaimed" in decision.details


async def test_stock_engines_recompute() -> None:
    """Nothing is read from an engine with the stock connector of which nobody says more."""
    stock = ConnectorKind.STOCK
    fleet = Fleet(prefill(connector=stock), decode(connector=stock))
    fleet.grant(lease())
    decision = await fleet.router.decide(subject())
    assert decision.strategy is Strategy.RECOMPUTE
    assert decision.reason is DecisionReason.STOCK_CONNECTOR
    with pytest.raises(StrategyImpossible, match="stock connector"):
        await fleet.router.decide(subject(), forced=Strategy.PULL)


@pytest.mark.parametrize("role", [Role.DECODE, Role.BOTH])
async def test_without_prefill_engine_decode_serves_alone(role: Role) -> None:
    """Where no prefill engine serves the model, one engine does all, and retains."""
    fleet = Fleet(engine("d", role))
    decision = await fleet.router.decide(subject())
    assert decision.strategy is Strategy.LOCAL
    assert decision.reason is DecisionReason.NO_PREFILL_ENGINE
    assert decision.prefill is None
    params = params_of(decision.decode.kv_transfer_params)
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (False, False)
    assert "kvplane" in params


async def test_forced_strategies() -> None:
    """A forced strategy is carried out, or refused with what is in its way."""
    fleet = Fleet(prefill(), decode())
    with pytest.raises(StrategyImpossible, match="no retention"):
        await fleet.router.decide(subject(), forced=Strategy.PULL)
    fleet.grant(lease())
    local = await fleet.router.decide(subject(), forced=Strategy.LOCAL)
    assert (local.strategy, local.prefill) == (Strategy.LOCAL, None)
    assert local.lease == "leases/l1"
    again = await fleet.router.decide(subject(), forced=Strategy.RECOMPUTE)
    assert (again.strategy, again.reason) == (Strategy.RECOMPUTE, DecisionReason.FORCED)
    assert again.lease == ""


async def test_request_id_is_good_for_one_turn() -> None:
    """An id that comes back with another turn, or is no UUID, is refused."""
    fleet = Fleet(prefill(), decode())
    await fleet.router.decide(subject(), request_id=R1)
    with pytest.raises(InvalidRequest, match="another request"):
        await fleet.router.decide(subject("other"), request_id=R1)
    with pytest.raises(InvalidRequest, match="UUID"):
        await fleet.router.decide(subject(), request_id="r1")


async def test_missing_engines_are_late_at_first() -> None:
    """A router that has just started answers Unavailable where an engine may yet register."""
    fleet = Fleet()
    with pytest.raises(Unavailable, match="no engine has registered") as refused:
        await fleet.router.decide(subject())
    assert refused.value.retry_after == 1.0
    fleet.put(decode())
    for strategy in (Strategy.PULL, Strategy.RECOMPUTE):
        with pytest.raises(Unavailable, match="no prefill engine has registered yet") as refused:
            await fleet.router.decide(subject(), forced=strategy)
        assert refused.value.retry_after == 1.0
    assert (await fleet.router.decide(subject())).strategy is Strategy.LOCAL

    await fleet.clock.advance(fleet.config.restart_grace)

    with pytest.raises(StrategyImpossible, match="no prefill engine serves"):
        await fleet.router.decide(subject(), forced=Strategy.RECOMPUTE)
    fleet.remove("d")
    with pytest.raises(NotFound, match="start one"):
        await fleet.router.decide(subject(model="other"))


async def test_present_prefill_engine_that_cannot_serve_is_not_waited_for() -> None:
    """A forced strategy whose prefill engine is there and unusable is impossible at once."""
    fleet = Fleet(prefill(state=EngineState.DRAINING), decode())
    with pytest.raises(StrategyImpossible, match="engines/p: draining"):
        await fleet.router.decide(subject(), forced=Strategy.RECOMPUTE)


async def test_load_spreads_and_is_released_once() -> None:
    """Decisions count until each leg is reported, and a leg is released exactly once."""
    fleet = Fleet(prefill("p"), prefill("q"), decode("d"), decode("e"))
    first = await fleet.router.decide(subject("a"))
    second = await fleet.router.decide(subject("b"))
    assert first.prefill is not None
    assert second.prefill is not None
    assert {first.prefill.engine, second.prefill.engine} == {"engines/p", "engines/q"}
    assert {first.decode.engine, second.decode.engine} == {"engines/d", "engines/e"}
    report = LegReport(
        decision_id=first.decision_id, leg=LegKind.PREFILL, outcome=RouteOutcome.SUCCEEDED
    )
    await fleet.router.report(report)
    await fleet.router.report(report)
    assert fleet.in_flight.count(first.prefill.engine, LegKind.PREFILL) == 0
    assert fleet.in_flight.count(first.decode.engine, LegKind.DECODE) == 1
    await fleet.router.report(done(first))
    await fleet.router.report(done(first))
    assert fleet.in_flight.count(first.decode.engine, LegKind.DECODE) == 0
    assert fleet.in_flight.count(second.decode.engine, LegKind.DECODE) == 1


async def test_end_of_the_prefill_leg_drops_the_claim_of_a_pull() -> None:
    """Once the prefill engine has read, the turn needs the lease no more; it is dropped once."""
    fleet = Fleet(prefill(), decode())
    fleet.grant(lease())
    decision = await fleet.router.decide(subject(), forced=Strategy.PULL)
    await fleet.router.report(
        LegReport(
            decision_id=decision.decision_id,
            leg=LegKind.PREFILL,
            outcome=RouteOutcome.SUCCEEDED,
        )
    )
    assert fleet.claims.dropped == ["leases/l1"]
    await fleet.router.report(done(decision, RouteOutcome.CANCELLED))
    assert fleet.claims.dropped == ["leases/l1"]


@pytest.mark.parametrize("strategy", [Strategy.LOCAL, Strategy.PULL])
async def test_end_of_turn_drops_the_claim(strategy: Strategy) -> None:
    """With the decode leg the claim is dropped, whatever was heard of the prefill leg."""
    fleet = Fleet(prefill(), decode())
    fleet.grant(lease())
    decision = await fleet.router.decide(subject(), forced=strategy)
    assert fleet.claims.dropped == []
    await fleet.router.report(done(decision, RouteOutcome.CANCELLED))
    assert fleet.claims.dropped == ["leases/l1"]


async def test_repeated_request_gets_the_first_answer() -> None:
    """A request id makes a retry return the first decision and count once."""
    fleet = Fleet(prefill(), decode())
    first = await fleet.router.decide(subject(), request_id=R1)
    again = await fleet.router.decide(subject(), request_id=R1)
    assert again == first
    assert len(fleet.in_flight) == 1
    assert (await fleet.router.decide(subject(), request_id=R2)) != first


async def test_failed_request_id_is_decided_anew() -> None:
    """A request that failed is not remembered."""
    fleet = Fleet(prefill())
    with pytest.raises(Unavailable):
        await fleet.router.decide(subject(), request_id=R1)
    fleet.put(decode())
    assert (await fleet.router.decide(subject(), request_id=R1)).decode.engine == "engines/d"


async def test_unreported_turn_is_dropped_after_its_ttl() -> None:
    """A turn that nobody reports counts until decision_ttl, and its claim is dropped then."""
    fleet = Fleet(prefill(), decode(), config=RouterConfig(decision_ttl=60))
    fleet.grant(lease())
    await fleet.router.decide(subject())
    await fleet.clock.advance(59)
    await fleet.router.decide(subject("other"))
    assert len(fleet.in_flight) == 2
    await fleet.clock.advance(1)
    await fleet.router.decide(subject("third"))
    assert len(fleet.in_flight) == 2
    assert fleet.claims.dropped == ["leases/l1"]


async def test_too_many_turns_are_refused() -> None:
    """Beyond max_in_flight turns are refused as saturated, with a time to retry."""
    fleet = Fleet(prefill(), decode(), config=RouterConfig(max_in_flight=1))
    decision = await fleet.router.decide(subject())
    with pytest.raises(Saturated) as refused:
        await fleet.router.decide(subject("other"))
    assert refused.value.retry_after > 0
    await fleet.router.report(done(decision))
    assert (await fleet.router.decide(subject("other"))).decode.engine == "engines/d"


async def test_unknown_model_lists_the_known() -> None:
    """A model that no engine ever served is NotFound, and the message says which are."""
    fleet = Fleet(prefill(), decode())
    with pytest.raises(NotFound, match="served: m"):
        await fleet.router.decide(subject(model="nope"))


async def test_no_engine_now_says_why_for_each() -> None:
    """Engines that exist but cannot take the turn are named with their reasons."""
    fleet = Fleet(
        prefill(), decode("d", state=EngineState.DRAINING), decode("e", state=EngineState.LOST)
    )
    with pytest.raises(Unavailable) as refused:
        await fleet.router.decide(subject())
    assert "engines/d: draining" in refused.value.message
    assert "engines/e: lost" in refused.value.message
    assert refused.value.retry_after == 1.0
    for gone in ("d", "e"):
        fleet.remove(gone)
    with pytest.raises(Unavailable, match="at the moment"):
        await fleet.router.decide(subject())


async def test_mismatched_pair_is_not_formed() -> None:
    """A prefill engine with another block size does not serve with this decode engine."""
    fleet = Fleet(prefill("p", block_size=32), prefill("q"), decode())
    for _ in range(3):
        decision = await fleet.router.decide(subject())
        assert decision.prefill is not None
        assert decision.prefill.engine == "engines/q"


@pytest.mark.parametrize(
    "bad",
    [
        Subject(session_key=key(model="")),
        Subject(session_key=key(tenant="")),
        Subject(session_key=key("x" * 600)),
    ],
)
async def test_malformed_subject(bad: Subject) -> None:
    """A subject without tenant or model, or with too long a part, is refused by its field."""
    with pytest.raises(InvalidRequest) as refused:
        await Fleet(prefill(), decode()).router.decide(bad)
    assert refused.value.field.startswith("session_key.")


async def test_data_parallel_rank_is_asked_for() -> None:
    """The rank is set only where the endpoint serves several."""
    fleet = Fleet(prefill(), replace(decode(), data_parallel_rank=1, data_parallel_size=2))
    decision = await fleet.router.decide(subject())
    assert decision.decode.data_parallel_rank == 1
    assert decision.prefill is not None
    assert decision.prefill.data_parallel_rank is None


async def test_retained_turn_is_over_without_its_report() -> None:
    """What an engine retains of a turn ends its count and its claim, should no report ever come."""
    fleet = Fleet(prefill(), decode())
    held = fleet.grant(lease())
    decision = await fleet.router.decide(subject())
    assert fleet.in_flight.count("engines/d", LegKind.DECODE) == 1
    fleet.grant(lease(lease_id="l2", token=2, decision_id=decision.decision_id))
    assert len(fleet.in_flight) == 0
    assert fleet.claims.dropped == [held.name]
    # The report that comes after all changes nothing.
    await fleet.router.report(
        LegReport(decision.decision_id, LegKind.DECODE, RouteOutcome.SUCCEEDED)
    )
    assert fleet.in_flight.count("engines/d", LegKind.DECODE) == 0
