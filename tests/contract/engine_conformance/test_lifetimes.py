"""How long retentions last, and what ends them."""

from kvplane.api.lease.v1 import lease_pb2
from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_services.clock import SystemClock
from tests.contract.engine_conformance.bench import Bench, continued, new_session, opening
from tests.support.programs import pause, wait_until
from tests.support.vllm_engines import MODEL, Reply, ask


def _local(bench: Bench, session: str) -> Reply:
    params = {**LOCAL_ONLY, KEY: TurnMark("default", MODEL, "", session).encode()}
    return ask(bench.pair.decode, opening(session), params=params, stream=True)


def _ended(bench: Bench, session: str) -> bool:
    return not bench.leases(session)


def test_an_unclaimed_lease_expires_in_time(bench: Bench) -> None:
    """Unless somebody claims it a lease ends as EXPIRED, at its TTL and at most a second later."""
    session = new_session()
    clock = SystemClock()
    _local(bench, session)
    finished = clock.now()
    wait_until(lambda: not _ended(bench, session), seconds=3, what="a lease")

    wait_until(lambda: _ended(bench, session), seconds=bench.lease_ttl + 5, what="the end")

    assert bench.lease_ttl - 0.5 <= clock.now() - finished <= bench.lease_ttl + 1.0
    (lease,) = bench.leases(session, ended=True)
    assert lease.end_reason == lease_pb2.END_REASON_EXPIRED


def test_a_claimed_lease_stays_and_memory_comes_back_after_it(bench: Bench) -> None:
    """A claim outlasts the TTL with a handle that can still be read; once dropped all is free."""
    session = new_session()
    first = _local(bench, session)
    lease = bench.lease(session)

    pause(bench.lease_ttl + 1.5)

    assert not _ended(bench, session)
    messages = continued(opening(session), first)
    handle = bench.handle(session)
    params = {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    before = bench.spent(bench.pair.prefill)
    ask(bench.pair.prefill, messages, params=params, max_tokens=1)
    assert bench.since(bench.pair.prefill, before).transferred == handle["remote_num_tokens"]
    bench.drop(lease)
    wait_until(lambda: _ended(bench, session), seconds=bench.lease_ttl + 5, what="the end")


def test_a_released_lease_ends_at_its_fence(bench: Bench) -> None:
    """A release is carried out when no exported handle promises the blocks any more."""
    session = new_session()
    _local(bench, session)
    wait_until(lambda: not _ended(bench, session), seconds=3, what="a lease")
    (lease,) = bench.leases(session)

    bench.plane.run(bench.plane.leases.release(lease.name, fencing_token=lease.fencing_token))

    (released,) = bench.leases(session, ended=True)
    assert released.state in (lease_pb2.Lease.STATE_RELEASING, lease_pb2.Lease.STATE_ENDED)

    def gone() -> bool:
        (last,) = bench.leases(session, ended=True)
        return last.state == lease_pb2.Lease.STATE_ENDED

    wait_until(gone, seconds=bench.lease_ttl + 5, what="the end")
    (over,) = bench.leases(session, ended=True)
    assert over.end_reason == lease_pb2.END_REASON_RELEASED


def test_a_newer_turn_supersedes_the_older_lease(bench: Bench) -> None:
    """Of a session only the newest lease lives; the older one ends as SUPERSEDED."""
    session = new_session()
    first = _local(bench, session)
    wait_until(lambda: not _ended(bench, session), seconds=3, what="a lease")
    (older,) = bench.leases(session)
    params = {**LOCAL_ONLY, KEY: TurnMark("default", MODEL, "", session).encode()}
    ask(bench.pair.decode, continued(opening(session), first), params=params, stream=True)

    def superseded() -> bool:
        ended = {one.name: one.end_reason for one in bench.leases(session, ended=True)}
        return ended[older.name] == lease_pb2.END_REASON_SUPERSEDED

    wait_until(superseded, seconds=bench.lease_ttl + 5, what="the older one's end")


def test_all_memory_comes_back(bench: Bench) -> None:
    """Once nobody claims anything, the decode engine's usage returns to zero."""
    for lease in bench.plane.each(bench.plane.leases.list()):
        bench.drop(lease)

    def empty() -> bool:
        # An idle engine's gauge may be as old as its last step.
        ask(bench.pair.decode, [{"role": "user", "content": "x"}], max_tokens=1)
        return bench.used_blocks() == 0

    wait_until(empty, seconds=bench.lease_ttl + 8, what="no blocks in use")
