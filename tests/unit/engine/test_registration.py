from typing import Any

import pytest

from kvplane_services.engine.model import FixedRetention, KvLayout, NixlAddress
from kvplane_services.engine.registration import DirectoryConfig, check_registration
from kvplane_services.errors import InvalidRequest
from tests.support.state_values import engine_of, stock_engine


def test_a_complete_engine_is_taken() -> None:
    """What an engine tells is kept; only its endpoint is put into canonical form."""
    engine = engine_of(endpoint="http://10.0.0.1:8000/", labels={"zone": "a"})

    checked = check_registration(engine)

    assert checked.endpoint == "http://10.0.0.1:8000"
    assert engine.labels == checked.labels


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"engine_id": ""}, "engine_id"),
        ({"engine_id": "a/b"}, "engine_id"),
        ({"engine_id": "x" * 129}, "engine_id"),
        ({"endpoint": "http://0.0.0.0:1"}, "engine.endpoint"),
        ({"models": ()}, "engine.models"),
        ({"models": ("m", "")}, "engine.models"),
        ({"data_parallel_rank": 1}, "engine.data_parallel_rank"),
        ({"data_parallel_rank": -1}, "engine.data_parallel_rank"),
        ({"labels": {str(n): "" for n in range(65)}}, "engine.labels"),
        ({"labels": {"zone": "x" * 257}}, "engine.labels"),
        ({"nixl": None}, "engine.nixl"),
        ({"nixl": NixlAddress("0.0.0.0", 5600, "e")}, "engine.nixl.host"),
        ({"nixl": NixlAddress("[::1]", 5600, "e")}, "engine.nixl.host"),
        ({"nixl": NixlAddress("127.0.0.1", 5600, "e")}, "engine.nixl.host"),
        ({"nixl": NixlAddress("::1", 5600, "e")}, "engine.nixl.host"),
        ({"nixl": NixlAddress("localhost", 5600, "e")}, "engine.nixl.host"),
        ({"nixl": NixlAddress("h ", 5600, "e")}, "engine.nixl.host"),
        ({"nixl": NixlAddress("h", 0, "e")}, "engine.nixl.port"),
        ({"nixl": NixlAddress("h", 5600, "")}, "engine.nixl.engine_id"),
        ({"layout": None}, "engine.layout"),
        ({"layout": KvLayout(block_size=0, total_blocks=1)}, "engine.layout.block_size"),
        ({"layout": KvLayout(block_size=16, total_blocks=0)}, "engine.layout.total_blocks"),
        (
            {"layout": KvLayout(block_size=16, total_blocks=1, tensor_parallel_size=-1)},
            "engine.layout.tensor_parallel_size",
        ),
    ],
)
def test_incomplete_engines_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    """The refusal names the field that is wrong."""
    with pytest.raises(InvalidRequest) as refused:
        check_registration(engine_of(**({"engine_id": "d0"} | changes)))

    assert field == refused.value.field


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:8000", "http://[::1]:1", "http://localhost"]
)
def test_an_engine_on_this_machine_alone_may_say_so(endpoint: str) -> None:
    """Loopback beside loopback is a deployment on one machine."""
    for host in ("127.0.0.1", "::1", "localhost"):
        check_registration(engine_of(endpoint=endpoint, nixl=NixlAddress(host, 5600, "e")))


def test_a_side_channel_on_loopback_is_explained() -> None:
    """The message says what to set, and to what."""
    with pytest.raises(InvalidRequest, match=r"10\.0\.0\.1.*VLLM_NIXL_SIDE_CHANNEL_HOST"):
        check_registration(engine_of(nixl=NixlAddress("127.0.0.1", 5600, "e")))


def test_stock_engines_need_neither_side_channel_nor_layout() -> None:
    """An engine named by hand is known by its endpoint and models alone."""
    check_registration(stock_engine())


@pytest.mark.parametrize(
    "durations",
    [
        {"ttl": 1.0},
        {"ttl": 400.0},
        {"min_ttl": 0.0},
        {"heartbeat_interval": 1.5},
        {"heartbeat_interval": 0.0},
        {"remember_lost": 0.0},
        {"max_engines": 0},
    ],
)
def test_durations_that_do_not_fit_together(durations: dict[str, Any]) -> None:
    """A configuration under which engines would be lost at once is refused at construction."""
    with pytest.raises(ValueError, match="must"):
        DirectoryConfig(**durations)


def test_ttl_is_clamped_at_both_ends() -> None:
    """A wish out of bounds is granted as far as the bounds go; none means the default."""
    config = DirectoryConfig()

    assert [config.clamp(ttl) for ttl in (0.0, 0.1, 1e9, 20.0)] == [15.0, 3.0, 300.0, 20.0]


def test_only_stock_engines_have_their_retentions_told() -> None:
    """Others report what they keep; and a time that is none is refused."""
    keeps = FixedRetention(ttl=480.0)
    assert check_registration(stock_engine(fixed_retention=keeps)).fixed_retention == keeps
    with pytest.raises(InvalidRequest, match="stock connector"):
        check_registration(engine_of(fixed_retention=keeps))
    with pytest.raises(InvalidRequest, match="ttl"):
        check_registration(stock_engine(fixed_retention=FixedRetention(ttl=0.0)))
