import pytest

from kvplane_services.engine.addresses import check_endpoint, check_host, check_port
from kvplane_services.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/", "http://host:8000"),
        ("https://[2001:db8::1]:8000", "https://[2001:db8::1]:8000"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
    ],
)
def test_good_endpoints(given: str, canonical: str) -> None:
    """A base URL is taken, without a slash at its end."""
    assert check_endpoint(given) == canonical


@pytest.mark.parametrize(
    ("endpoint", "hint"),
    [
        ("http://0.0.0.0:8000", "interface that the other machines use"),
        ("http://[::]:8000", "interface that the other machines use"),
        ("http://*:8000", "interface that the other machines use"),
        ("http://2001:db8::1:8000", "brackets"),
        ("http://[2001:db8::1:8000", "brackets"),
        ("host:8000", "http://host:port"),
        ("", "http://host:port"),
        ("ftp://host:8000", "http://host:port"),
        ("http://:8000", "http://host:port"),
        ("http://user:secret@host:8000", "without user"),
        ("http://host:8000?x=1", "without user, query"),
        ("http://host:99999", "no URL"),
        ("http://host:http", "no URL"),
        (" http://host:8000", "without blanks"),
        ("http://host:8000\n", "without blanks"),
        ("http://ho st:8000", "without blanks"),
    ],
)
def test_bad_endpoints(endpoint: str, hint: str) -> None:
    """An address that gateways could not use is refused, and the message says what to write."""
    with pytest.raises(InvalidRequest) as refused:
        check_endpoint(endpoint)

    assert refused.value.field == "engine.endpoint"
    assert hint in refused.value.message
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("host", ["host", "10.0.0.1", "2001:db8::1", "engine-0.svc.local"])
def test_good_hosts(host: str) -> None:
    """Names and addresses without brackets are taken."""
    check_host(host)


@pytest.mark.parametrize("host", ["", " ", "*", "0.0.0.0", "::", "[::1]", "host:5600"])
def test_bad_hosts(host: str) -> None:
    """Wildcards, brackets and ports are refused."""
    with pytest.raises(InvalidRequest):
        check_host(host)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_bad_ports(port: int) -> None:
    """A port is 1 to 65535."""
    with pytest.raises(InvalidRequest):
        check_port(port)
