from dataclasses import replace

import grpc
import pytest

from kvplane.client.channel import Tls
from kvplane_services.adapters.etcd.config import EtcdConfig, SettingNames
from kvplane_services.adapters.etcd.grpc_failures import StaleToken, explain
from kvplane_services.errors import StoreRefused, Unavailable

# As whoever runs the process calls its settings.
NAMES = SettingNames(
    user="the user", password="the secret", authorities="ca", certificate="cert", key="key"
)
PLAIN = EtcdConfig(("a:1",), names=NAMES)
TLS = replace(PLAIN, tls=Tls(root_certificates=b"ca"))
MUTUAL = replace(
    PLAIN, tls=Tls(root_certificates=b"ca", private_key=b"key", certificate_chain=b"chain")
)
REFUSED = "etcdserver: authentication failed, invalid user ID or password"
NO_TLS = "it may speak no TLS: leave out ca, cert, key"
CUT = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:1.2.3.4:1: "


@pytest.mark.parametrize(
    ("said", "config", "means"),
    [
        (f"{CUT}Socket closed", PLAIN, "it may want TLS: set ca"),
        (f"{CUT}recvmsg:Connection reset by peer (104)", PLAIN, "it may want TLS: set ca"),
        (f"{CUT}Handshake read failed (Socket closed)", TLS, NO_TLS),
        (f"{CUT}Handshake read failed (recvmsg:Connection reset)", TLS, NO_TLS),
        (
            f"{CUT}Socket closed",
            TLS,
            "it may want a certificate from its clients: set cert, key",
        ),
        (
            f"{CUT}sendmsg: Broken pipe (32)",
            MUTUAL,
            "it may not take our certificate: check cert, key",
        ),
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


@pytest.mark.parametrize(
    ("said", "config", "means"),
    [
        (
            "CERTIFICATE_VERIFY_FAILED: self-signed certificate: ",
            TLS,
            "give the certificate of the authority that signed it (ca)",
        ),
        ("ALERT_UNKNOWN_CA", TLS, "give one, and its key (cert, key)"),
        ("ALERT_UNKNOWN_CA", MUTUAL, "give one that its authority signed (cert, key)"),
        ("Failed to create security handshaker", MUTUAL, "another certificate (ca, cert, key)"),
        ("etcdserver: user name is empty", PLAIN, "give both (the user, the secret)"),
        (REFUSED, replace(PLAIN, user="x"), "user 'x' without a password: set the secret"),
        (
            REFUSED,
            replace(PLAIN, user="x", password="p"),
            "user 'x' with this password: check the user, the secret",
        ),
    ],
)
def test_settings_go_by_their_names(said: str, config: EtcdConfig, means: str) -> None:
    """What is to be changed is named as those call it who change it."""
    failure = explain(said, address="a:1", config=config)

    assert isinstance(failure, StoreRefused)
    assert failure.message.endswith(means)
