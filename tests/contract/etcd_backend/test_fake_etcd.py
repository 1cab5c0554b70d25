"""The double of etcd that unit tests use is held to what real etcds are held to."""

import pytest

from kvplane_services.adapters.etcd.backend import (
    CompactedError,
    DeleteOp,
    EtcdBackend,
    PutOp,
)
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Unavailable
from tests.contract.etcd_backend.test_keys import (  # noqa: F401 - are collected here too
    test_absence_can_be_demanded,
    test_absent_key,
    test_any_bytes_are_keys_and_values,
    test_deletions_tell_whether_there_was_a_key,
    test_pages_are_parts_of_a_range,
    test_range_is_of_one_revision,
    test_range_of_all_keys,
    test_range_takes_as_many_pages_as_there_are,
    test_refused_transaction_tells_what_is_there,
    test_unknown_lease_refuses_the_whole_transaction,
    test_written_key_is_read_with_its_numbers,
)
from tests.contract.etcd_backend.test_leases import (  # noqa: F401 - are collected here too
    test_failure_of_whoever_names_leases_is_raised,
    test_key_goes_with_its_lease,
    test_many_leases_on_one_stream,
    test_renewal_tells_the_seconds_that_remain,
    test_renewed_lease_keeps_its_key,
    test_revoking_deletes_the_keys,
)
from tests.contract.etcd_backend.test_watches import (  # noqa: F401 - are collected here too
    test_a_transaction_is_one_batch,
    test_changes_come_in_order,
    test_first_batch_comes_at_once,
    test_headers_run_ahead_of_nothing,
    test_other_keys_are_not_watched,
    test_two_watches,
)
from tests.support.fake_etcd import FakeEtcd


@pytest.fixture
def etcd() -> FakeEtcd:
    return FakeEtcd(clock=SystemClock())


@pytest.fixture
async def backend(etcd: FakeEtcd) -> EtcdBackend:
    return etcd.client()


async def test_compacted_revision(backend: EtcdBackend, etcd: FakeEtcd) -> None:
    """What is compacted cannot be watched, and the newest revision still can."""
    await backend.txn([], [PutOp(b"a", b"1")])
    done = await backend.txn([], [PutOp(b"a", b"2")])
    etcd.compact()

    with pytest.raises(CompactedError):
        await anext(backend.watch(b"", start_revision=done.header.revision))
    await anext(backend.watch(b"", start_revision=done.header.revision + 1))


async def test_deletion_at_the_compacted_revision(backend: EtcdBackend, etcd: FakeEtcd) -> None:
    """A watch from the very revision that was compacted is refused, not served in part."""
    await backend.txn([], [PutOp(b"a", b"1")])
    deleted = await backend.txn([], [DeleteOp(b"a")])
    etcd.compact()

    with pytest.raises(CompactedError):
        await anext(backend.watch(b"", start_revision=deleted.header.revision))


async def test_lost_history(backend: EtcdBackend, etcd: FakeEtcd) -> None:
    """Revisions of a history that was lost cannot be watched."""
    done = await backend.txn([], [PutOp(b"a", b"1")])
    watch = backend.watch(b"", start_revision=done.header.revision + 1)
    await anext(watch)
    etcd.lose_data()

    with pytest.raises(Unavailable):
        await anext(watch)
    with pytest.raises(CompactedError):
        await anext(backend.watch(b"", start_revision=done.header.revision + 1))


async def test_an_etcd_that_is_away(backend: EtcdBackend, etcd: FakeEtcd) -> None:
    """Nothing is answered, and streams break."""
    watch = backend.watch(b"", start_revision=1)
    await anext(watch)
    etcd.set(away=True)

    with pytest.raises(Unavailable):
        await anext(watch)
    with pytest.raises(Unavailable):
        await backend.get(b"a")
    with pytest.raises(Unavailable):
        await backend.txn([], [PutOp(b"a", b"1")])
    etcd.set(away=False)
    assert (await backend.get(b"a"))[1] is None
