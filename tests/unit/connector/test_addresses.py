import pytest

from kvplane_connector.addresses import side_channel_trouble


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("localhost", "http://[::1]:8000"),
        ("engine-7.pod", "https://engine-7.pod"),
    ],
)
def test_addresses_that_fit_are_no_trouble(host: str, endpoint: str) -> None:
    """A side channel on loopback is fine for an engine that is on loopback itself."""
    assert side_channel_trouble(host, endpoint) == ""


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "0.0.0.0", "::"])
def test_an_address_that_only_this_host_reaches_is_said(host: str) -> None:
    """Handles carry this address to other hosts; the setting to change is named."""
    trouble = side_channel_trouble(host, "http://10.0.0.7:8000")

    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in trouble
    assert "10.0.0.7" in trouble
