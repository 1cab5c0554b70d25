from google.protobuf.duration_pb2 import Duration

from kvplane.api.lease.v1 import lease_pb2 as pb
from kvplane_services.cli.leases import row_of


def test_a_lease_on_its_way_out_says_why() -> None:
    """Whoever looks need not wait for the end."""
    lease = pb.Lease(state=pb.Lease.STATE_RELEASING, release_reason=pb.END_REASON_SUPERSEDED)

    assert "releasing (superseded)" in row_of(lease)


def test_claims_at_other_replicas_have_no_time() -> None:
    """Those at the replica that was asked do."""
    lease = pb.Lease(
        claims=[
            pb.LeaseClaim(holder="a", remaining=Duration(seconds=20)),
            pb.LeaseClaim(holder="b"),
        ]
    )

    assert row_of(lease)[-1] == "a 20.0 s, b"
