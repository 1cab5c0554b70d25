import grpc
import pytest

from kvplane.client.channel import Tls
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.grpc_failures import StaleToken, explain
from kvplane_services.errors import StoreRefused, Unavailable

PLAIN = EtcdConfig(("a:1",))
TLS = EtcdConfig(("a:1",), tls=Tls(root_certificates=b"ca"))
MUTUAL = EtcdConfig(
    ("a:1",), tls=Tls(root_certificates=b"ca", private_key=b"key", certificate_chain=b"chain")
)
CUT = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:1.2.3.4:1: "


@pytest.mark.parametrize(
    ("said", "config", "means"),
    [
        (f"{CUT}Socket closed", PLAIN, "it may want TLS"),
        (f"{CUT}recvmsg:Connection reset by peer (104)", PLAIN, "it may want TLS"),
        (f"{CUT}Handshake read failed (Socket closed)", TLS, "it may speak no TLS"),
        (f"{CUT}Handshake read failed (recvmsg:Connection reset)", TLS, "it may speak no TLS"),
        (f"{CUT}Socket closed", TLS, "it may want a certificate from its clients"),
        (f"{CUT}sendmsg: Broken pipe (32)", MUTUAL, "it may not take our certificate"),
    ],
)
def test_hanging_up(said: str, config: EtcdConfig, means: str) -> None:
    """What an etcd that hangs up may want depends on when it does and on what it got."""
    failure = explain(said, address="a:1", config=config, code=grpc.StatusCode.UNAVAILABLE)

    assert isinstance(failure, Unavailable)
    assert failure.message == f"etcd at a:1 hangs up: {means}"


def test_unknown_words_are_passed_on_in_one_line() -> None:
    """What etcd says that nobody foresaw is shown, whatever line breaks are in it."""
    failure = explain("etcdserver: too\n many  requests", address="a:1", config=PLAIN)

    assert isinstance(failure, Unavailable)
    assert failure.message == "etcd at a:1 fails: etcdserver: too many requests"
    assert explain("", address="a:1", config=PLAIN).args == (
        "etcd at a:1 fails: it gives no reason",
    )


def test_asking_for_a_user() -> None:
    """An etcd that asks who we are is a matter of the token if we have a user, else of settings."""
    said = "etcdserver: user name is empty"

    assert isinstance(explain(said, address="a:1", config=PLAIN), StoreRefused)
    named = EtcdConfig(("a:1",), user="u", password="p")
    assert isinstance(explain(said, address="a:1", config=named), StaleToken)
