from kvplane_services.lease.claims import Claims
from kvplane_services.lease.model import Claim


def test_a_claim_stands_until_its_time() -> None:
    """A claim is there until it runs out, and is not there after."""
    claims = Claims()
    claims.add("h", until=10.0, now=0.0)

    assert (Claim("h", 4.0),) == claims.standing(6.0)
    assert claims.holds("h", 9.9)
    assert not claims.holds("h", 10.0)
    assert claims.standing(10.0) == ()


def test_a_renewed_claim_never_gets_shorter() -> None:
    """A shorter renewal leaves the longer claim as it was."""
    claims = Claims()
    claims.add("h", until=10.0, now=0.0)
    claims.add("h", until=5.0, now=1.0)

    assert claims.holds("h", 9.0)


def test_claims_of_several_holders_stand_apart() -> None:
    """Dropping one holder's claim leaves the other's."""
    claims = Claims()
    claims.add("a", until=10.0, now=0.0)
    claims.add("b", until=20.0, now=0.0)
    claims.drop("a", now=1.0)
    claims.drop("nobody", now=1.0)

    assert (Claim("b", 19.0),) == claims.standing(1.0)
    assert claims.count(1.0) == 1


def test_last_use() -> None:
    """A claimed lease is in use; one that was claimed was in use until the claim ended."""
    claims = Claims()
    assert claims.last_use(0.0) == float("-inf")

    claims.add("h", until=10.0, now=0.0)

    assert claims.last_use(5.0) == 5.0
    assert claims.last_use(15.0) == 10.0
    claims.add("h", until=30.0, now=20.0)
    claims.drop("h", now=22.0)
    assert claims.last_use(25.0) == 22.0
    claims.drop("h", now=26.0)
    assert claims.last_use(27.0) == 22.0
