from dataclasses import replace

from kvplane_services.lease.model import Handle, Lease
from kvplane_services.lease.newest import Newest
from tests.support.state_values import key_of


def lease(lease_id: str, token: int) -> Lease:
    return Lease(
        lease_id=lease_id,
        session_key=key_of(),
        engine_id="d0",
        engine_epoch=1,
        retention_id=lease_id,
        fencing_token=token,
        tokens=1,
        blocks=1,
        handle=Handle(b"{}"),
    )


def test_the_larger_token_supersedes() -> None:
    """In whichever order they become known."""
    older, newer = lease("a", 1), lease("b", 2)
    for order in ((older, newer), (newer, older)):
        newest = Newest()

        assert [newest.enter(key_of(), each) for each in order] == [None, older]
        assert newest.find(key_of()) is newer


def test_equal_tokens_are_told_apart_the_same_everywhere() -> None:
    """By id."""
    one, other = lease("a", 1), lease("b", 1)
    for order in ((one, other), (other, one)):
        newest = Newest()
        for each in order:
            newest.enter(key_of(), each)

        assert newest.find(key_of()) is other


def test_a_new_state_of_the_same_lease_supersedes_nothing() -> None:
    """It takes the place of the one before."""
    newest = Newest()
    newest.enter(key_of(), lease("a", 1))
    changed = replace(lease("a", 1), tokens=5)

    assert newest.enter(key_of(), changed) is None
    assert newest.find(key_of()) is changed


def test_only_the_newest_leaves() -> None:
    """A lease that is not the newest can leave without a trace."""
    newest = Newest()
    newest.enter(key_of(), lease("a", 1))
    newest.enter(key_of(), lease("b", 2))
    newest.leave(key_of(), "a")
    assert newest.find(key_of()) is not None

    newest.leave(key_of(), "b")

    assert newest.find(key_of()) is None
