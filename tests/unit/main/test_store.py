from contextlib import AsyncExitStack

import pytest

from kvplane_services.adapters import records
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.store import DEFAULT_PREFIX
from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.errors import InvalidRequest
from kvplane_services.main.store import LEASES_TABLES, PLANE_TABLES, REGISTRY_TABLES, opened_store
from kvplane_services.settings_store import StoreSection
from kvplane_services.store.model import TableSpec
from kvplane_services.store_url import StoreKind, StoreUrl
from tests.support.clock import FakeClock


def test_every_table_is_followed() -> None:
    """A plane holds copies of all tables that there are, and other processes of some."""
    known = {value for value in vars(records).values() if isinstance(value, TableSpec)}

    assert set(PLANE_TABLES) == known
    assert known >= set(LEASES_TABLES)
    assert known >= set(REGISTRY_TABLES)
    assert len({spec.name for spec in PLANE_TABLES}) == len(PLANE_TABLES)


def test_defaults_are_those_of_the_client() -> None:
    """What operators read is what the etcd client does by itself."""
    section, config = StoreSection(), EtcdConfig(("127.0.0.1:2379",))

    assert section.prefix == DEFAULT_PREFIX
    assert (section.timeout, section.try_timeout, section.silence) == (
        config.timeout,
        config.try_timeout,
        config.silence,
    )


async def test_the_embedded_store_is_the_default() -> None:
    """Without settings state is kept in the process."""
    async with opened_store(StoreSection(), tables=PLANE_TABLES, clock=FakeClock()) as store:
        assert isinstance(store, MemoryStore)


@pytest.mark.parametrize(
    ("url", "endpoints", "options"),
    [
        ("etcd://a:1", ("a:1",), {}),
        ("etcd://a:1,[::1]:2", ("a:1", "[::1]:2"), {}),
        ("etcd://a:1/?prefix=/x/&user=me", ("a:1",), {"prefix": "/x/", "user": "me"}),
        ("etcd3://a:1?user=", ("a:1",), {"user": ""}),
    ],
)
def test_urls(url: str, endpoints: tuple[str, ...], options: dict[str, str]) -> None:
    """A URL names the kind of store, its addresses, and settings."""
    parsed = StoreUrl.parse(url)

    assert parsed.kind is StoreKind(url.partition(":")[0])
    assert (parsed.endpoints, parsed.options) == (endpoints, options)


@pytest.mark.parametrize("options", ["prefix=/", "prefix=x/", "prefix=/x", "prefix=//"])
def test_prefixes_that_are_none(options: str) -> None:
    """A prefix sets a plane's keys apart from all others."""
    with pytest.raises(InvalidRequest, match="no prefix of keys"):
        StoreUrl.parse(f"etcd://a:1?{options}")


async def test_half_a_certificate() -> None:
    """A certificate without its key is refused before anybody is called."""
    section = StoreSection.model_validate({"url": "etcd://127.0.0.1:1", "tls_cert": "x.pem"})

    with pytest.raises(InvalidRequest, match="both"):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(
                opened_store(section, tables=PLANE_TABLES, clock=FakeClock())
            )
