import json
import math
from typing import Any

import pytest

from kvplane.client.retention import EndReason, Release, Renew, Report, Retention
from kvplane.digest import common_prefix, context_of
from kvplane.transfer_params import TurnMark, decode_proof
from kvplane_connector.retentions import NO_EXPIRY, RetainedTurn, RetentionLedger

TTL = 30.0
CONTEXT = context_of()


def ledger(low: float = 1.0, high: float = 100.0) -> RetentionLedger:
    return RetentionLedger(ttl=TTL, clamp_ttl=lambda ttl: min(max(ttl, low), high))


def retained(
    name: str = "r1",
    *,
    expiry: float = 130.0,
    blocks: range = range(3),
    has_word: bool = False,
) -> RetainedTurn:
    return RetainedTurn(
        retention_id=name,
        mark=TurnMark("t", "m", "a", "s", "d-1", b"\x07"),
        token_ids=list(range(300)),
        context=CONTEXT,
        block_ids=frozenset(blocks),
        block_size=128,
        kv_transfer_params={"do_remote_decode": True, "remote_blocks_expiry_time": expiry},
        expiry=expiry,
        has_word=has_word,
    )


def renew(ttl: float, name: str = "r1", token: int = 1) -> Renew:
    return Renew(name, "leases/l1", token, ttl)


def release(name: str = "r1", token: int = 1) -> Release:
    return Release(name, "leases/l1", token, EndReason.SUPERSEDED)


def exported_expiry(report: Report) -> float:
    (retention,) = report.retentions
    params: dict[str, Any] = json.loads(retention.kv_transfer_params)
    expiry: float = params["remote_blocks_expiry_time"]
    return expiry


def reported(book: RetentionLedger) -> Report:
    report = book.changes()
    book.acknowledge(report)
    return report


def test_a_retention_is_reported_with_its_proof() -> None:
    """The handle is vLLM's, with a proof from which a reader finds the common prefix."""
    book = ledger()

    book.begin(retained())

    (retention,) = book.changes().retentions
    params = json.loads(retention.kv_transfer_params)
    proof = decode_proof(params)
    assert proof is not None
    assert common_prefix(proof, list(range(300)), CONTEXT) == 300
    assert retention.digests == proof
    assert params["do_remote_decode"] is True
    assert params["kvplane"]["block_size"] == 128
    assert retention.session_key == ("t", "m", "a", "s")
    assert (retention.tokens, retention.blocks, retention.deadline) == (300, 3, 130.0)
    assert (retention.decision_id, retention.message_digest) == ("d-1", b"\x07")


def test_a_renewal_is_not_promised_before_the_workers_keep_it() -> None:
    """A handle says a later expiry only once the workers confirmed it."""
    book = ledger()
    book.begin(retained())
    reported(book)

    book.apply([renew(30)], sent_at=120.0)

    assert book.take_orders() == {"r1": 150.0}
    assert reported(book).retentions == ()
    assert book.confirm({"r1": 150.0})
    assert exported_expiry(reported(book)) == 150.0


def test_orders_are_taken_once() -> None:
    """The workers hear of each new deadline once, and only of the last one."""
    book = ledger()
    book.begin(retained())

    book.apply([renew(30)], sent_at=110.0)
    book.apply([renew(30)], sent_at=120.0)

    assert book.take_orders() == {"r1": 150.0}
    assert book.take_orders() == {}


def test_a_deadline_never_moves_before_what_was_promised() -> None:
    """A shorter TTL than the one in force orders nothing."""
    book = ledger()
    book.begin(retained(expiry=130.0))

    book.apply([renew(5)], sent_at=101.0)

    assert book.take_orders() == {}


def test_small_renewals_do_not_report_the_handle_each_time() -> None:
    """A handle is reported anew when its expiry can move by a quarter of the TTL."""
    book = ledger()
    book.begin(retained(expiry=130.0))
    reported(book)
    reports: list[Retention] = []

    for second in range(1, 17):
        book.apply([renew(30)], sent_at=100.0 + second)
        book.confirm(book.take_orders())
        reports += reported(book).retentions

    assert [one.deadline for one in reports] == [138.0, 146.0]


def test_the_ttl_is_put_within_the_bounds() -> None:
    """Neither a plane's renewal nor its TTL for new retentions passes the operator's bounds."""
    book = ledger(low=10, high=60)
    book.begin(retained(expiry=130.0))

    book.apply([renew(1000)], sent_at=120.0)
    book.set_ttl(2)

    assert book.take_orders() == {"r1": 180.0}
    assert book.ttl == 10


def test_a_release_lowers_the_deadline_to_what_was_promised_and_no_further() -> None:
    """Readers that hold a handle are safe until its expiry; what was renewed beyond is given up."""
    book = ledger()
    book.begin(retained(expiry=130.0))
    reported(book)
    book.apply([renew(32)], sent_at=100.0)
    book.confirm(book.take_orders())

    book.apply([release()], sent_at=103.0)

    assert book.take_orders() == {"r1": 130.0}


def test_what_was_released_is_not_renewed_and_ends_with_the_planes_reason() -> None:
    """A renewal that comes after a release is ignored."""
    book = ledger()
    book.begin(retained(expiry=130.0))
    reported(book)
    book.apply([release()], sent_at=103.0)

    book.apply([renew(50)], sent_at=104.0)
    ended = book.end("r1")

    assert book.take_orders() == {}
    assert ended
    assert book.changes().ended == (("r1", EndReason.SUPERSEDED),)


def test_a_release_for_an_unknown_reason_is_a_release() -> None:
    """A newer plane's reason is reported as the nearest that the contract accepts."""
    book = ledger()
    book.begin(retained())
    book.apply([Release("r1", "leases/l1", 1, EndReason.UNSPECIFIED)], sent_at=103.0)

    reported(book)
    book.end("r1")

    assert book.changes().ended == (("r1", EndReason.RELEASED),)


def test_a_renewal_confirmed_after_a_release_is_not_promised() -> None:
    """The crossing of a renewal with a release leaves the promised expiry as it was."""
    book = ledger()
    book.begin(retained(expiry=130.0))
    reported(book)
    book.apply([renew(60)], sent_at=110.0)
    renewed = book.take_orders()
    book.apply([release()], sent_at=111.0)

    book.confirm(renewed)

    assert book.take_orders() == {"r1": 130.0}
    assert reported(book).retentions == ()


def test_an_older_fencing_token_orders_nothing() -> None:
    """Directives of a lease that was superseded by a newer grant are ignored."""
    book = ledger()
    book.begin(retained())
    book.apply([renew(30, token=5)], sent_at=110.0)
    book.take_orders()

    book.apply([renew(60, token=4), release(token=4)], sent_at=111.0)

    assert book.take_orders() == {}


def test_an_end_is_reported_as_expired_unless_asked_for() -> None:
    """What nobody renewed and nobody released has expired; an unknown one is no event."""
    book = ledger()
    book.begin(retained())
    reported(book)

    assert book.end("r1")
    assert not book.end("r1")
    assert book.changes().ended == (("r1", EndReason.EXPIRED),)


def test_an_end_discards_pending_orders() -> None:
    """Workers are not told of a retention that they gave up."""
    book = ledger()
    book.begin(retained())
    book.apply([renew(60)], sent_at=110.0)

    book.end("r1")

    assert book.take_orders() == {}
    assert not book.confirm({"r1": 170.0})


def test_a_full_report_names_everything_held() -> None:
    """After a reconnect the plane hears of all retentions, their leases, tokens and reads."""
    book = ledger()
    book.begin(retained("r1"))
    book.begin(retained("r2"))
    reported(book)
    book.apply([renew(31, "r2", token=9)], sent_at=100.0)
    book.confirm(book.take_orders())
    book.read("r2", 3)

    by_name = {one.retention_id: one for one in book.full_report().retentions}

    assert set(by_name) == {"r1", "r2"}
    assert (by_name["r2"].lease, by_name["r2"].fencing_token) == ("leases/l1", 9)
    assert by_name["r2"].reads == 3


def test_reads_are_reported_and_end_nothing() -> None:
    """A read is counted, the retention stays."""
    book = ledger()
    book.begin(retained())
    reported(book)

    book.read("r1", 1)
    book.read("r1", 2)

    assert book.changes().reads == (("r1", 2),)
    assert book.retentions == 1


def test_shared_blocks_count_once() -> None:
    """Retained blocks are the union of what retentions hold, also after one of them ends."""
    book = ledger()
    book.begin(retained("r1", blocks=range(4)))
    book.begin(retained("r2", blocks=range(2, 8)))

    assert book.retained_blocks == 8
    book.end("r1")
    assert book.retained_blocks == 6
    book.end("r2")
    assert book.retained_blocks == 0


def test_a_handle_with_a_word_promises_no_time() -> None:
    """Whoever does not look at the word finds an expiry that is past, and declines."""
    book = ledger()

    book.begin(retained(expiry=130.0, has_word=True))
    report = reported(book)

    assert exported_expiry(report) == NO_EXPIRY
    assert report.retentions[0].deadline == 130.0
    assert book.may_be_freed_at("r1") == NO_EXPIRY


def test_renewals_do_not_report_a_handle_with_a_word_again() -> None:
    """Its handle says nothing that a renewal changes."""
    book = ledger()
    book.begin(retained(expiry=130.0, has_word=True))
    reported(book)

    book.apply([renew(90)], sent_at=120.0)
    orders = book.take_orders()

    assert orders == {"r1": 210.0}
    assert not book.confirm(orders)
    assert reported(book).retentions == ()
    assert book.full_report().retentions[0].deadline == 210.0


def test_a_retention_with_a_word_is_shortened_at_will() -> None:
    """A shorter TTL than the one in force is kept to."""
    book = ledger()
    book.begin(retained(expiry=130.0, has_word=True))

    book.apply([renew(5)], sent_at=101.0)

    assert book.take_orders() == {"r1": 106.0}


def test_a_retention_with_a_word_is_released_in_the_very_step() -> None:
    """Its release is an order of its own, taken once, and takes the place of a renewal."""
    book = ledger()
    book.begin(retained(expiry=130.0, has_word=True))
    reported(book)
    book.apply([renew(60)], sent_at=103.0)

    book.apply([release(), release()], sent_at=103.0)

    assert book.take_orders() == {}
    assert book.take_releases() == {"r1"}
    assert book.take_releases() == frozenset()
    book.end("r1")
    assert book.changes().ended == (("r1", EndReason.SUPERSEDED),)


def test_a_retention_without_a_word_is_not_released_before_what_was_promised() -> None:
    """Readers trust the expiry in its handle."""
    book = ledger()
    book.begin(retained(expiry=130.0))

    book.apply([release()], sent_at=103.0)

    assert book.may_be_freed_at("r1") == 130.0
    assert book.may_be_freed_at("unknown") is None
    assert book.take_releases() == frozenset()


def test_an_end_discards_a_pending_release() -> None:
    """Workers are not told to release what they gave up by themselves."""
    book = ledger()
    book.begin(retained(has_word=True))
    book.apply([release()], sent_at=103.0)

    book.end("r1")

    assert book.take_releases() == frozenset()


def test_many_renewals_are_spread_over_steps() -> None:
    """A step takes some of what a plane renews at once; none is lost, and none comes twice."""
    book = ledger()
    names = [f"r{number}" for number in range(150)]
    for name in names:
        book.begin(retained(name))
    book.apply([renew(50.0, name) for name in names], sent_at=100.0)

    steps = []
    while orders := book.take_orders():
        steps.append(orders)

    assert len(steps) == 10
    taken = [name for orders in steps for name in orders]
    assert taken == names


def test_tokens_are_let_go_once_they_are_digested() -> None:
    """A later report of the same retention goes by the digests."""
    book = ledger()
    turn = retained()
    book.begin(turn)
    first = reported(book)
    book.apply([renew(80.0)], sent_at=100.0)
    book.confirm(book.take_orders())

    again = reported(book)

    assert exported_expiry(first) < exported_expiry(again)
    assert again.retentions[0].tokens == 300
    assert again.retentions[0].digests == first.retentions[0].digests


@pytest.mark.parametrize("worth", [math.nan, math.inf, -1.0, 0.0])
def test_a_worth_that_is_no_number_is_not_taken(worth: float) -> None:
    """It would sort nowhere; the engine goes by what it knows itself."""
    book = ledger()
    book.begin(retained(has_word=True))
    (before,) = book.candidates(0.0, in_use=()).at_once

    book.apply([Renew("r1", "leases/l1", 1, TTL, worth)], sent_at=100.0)

    (after,) = book.candidates(0.0, in_use=()).at_once
    assert after.worth == before.worth
