"""The store that the settings name, open."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplane.client.backoff import Backoff
from kvplane.client.channel import Tls
from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.adapters.records import CLAIMS, ENGINES, HOMES, LEASES, MEMBERS, SESSIONS
from kvplane_services.clock import Clock
from kvplane_services.errors import InvalidRequest, Unavailable
from kvplane_services.main.listeners import read_pem
from kvplane_services.main.process import background, say
from kvplane_services.settings_store import StoreSection
from kvplane_services.store.model import TableSpec
from kvplane_services.store.ports import Store
from kvplane_services.store_url import StoreKind, StoreUrl

if TYPE_CHECKING:
    from kvplane_services.adapters.etcd.backend import EtcdBackend
    from kvplane_services.adapters.etcd.config import EtcdConfig
    from kvplane_services.adapters.etcd.store import EtcdStore

# What each process asks its store for, and so holds a copy of.
LEASES_TABLES = (CLAIMS, ENGINES, HOMES, LEASES, MEMBERS)
REGISTRY_TABLES = (MEMBERS, SESSIONS)
PLANE_TABLES = (*LEASES_TABLES, SESSIONS)

# What operators call the settings of etcd's client: its messages say what to change by these.
_USER, _PASSWORD = "store.user", "KVPLANE_STORE__PASSWORD"
_CA, _CERT, _KEY = "store.tls_ca", "store.tls_cert", "store.tls_key"

# Silence of that many seconds at the start is explained.
_PATIENCE = 1.0


@asynccontextmanager
async def opened_store(
    section: StoreSection, *, tables: Sequence[TableSpec[Any]], clock: Clock
) -> AsyncGenerator[Store]:
    """The store, which is connected and holds everything, and which runs inside of the block.

    etcd may be away for `start_timeout` before that. In the block it may be away for however long.

    Raises:
        InvalidRequest: The settings do not fit together.
        StoreRefused: etcd will not serve this process.
        Unavailable: It does not answer.

    """
    url = StoreUrl.parse(section.url)
    if url.kind is StoreKind.MEMORY:
        yield MemoryStore(clock=clock)
        return
    # Its libraries take a while to load, and not every plane needs them.
    from kvplane_services.adapters.etcd.store import EtcdStore  # noqa: PLC0415 - see above

    settings = section.model_copy(update=url.options)
    store = EtcdStore(
        backend=etcd_backend(settings, clock=clock),
        tables=tables,
        clock=clock,
        prefix=settings.prefix,
    )
    target = ",".join(url.endpoints)
    try:
        await _open(store, target=target, seconds=section.start_timeout, clock=clock)
        async with background(store.run()):
            yield store
    finally:
        await store.close()


def place_of(section: StoreSection) -> str:
    """What the settings name, for people: without user and password."""
    url = StoreUrl.parse(section.url)
    if url.kind is StoreKind.MEMORY:
        return "memory"
    prefix = section.model_copy(update=url.options).prefix
    return f"etcd at {','.join(url.endpoints)}, under {prefix}"


def etcd_backend(section: StoreSection, *, clock: Clock) -> "EtcdBackend":
    """A client of the etcd that the settings name, not yet connected. Raises InvalidRequest."""
    url = StoreUrl.parse(section.url)
    return _backend(url.kind, _config(section.model_copy(update=url.options), url), clock=clock)


def _config(section: StoreSection, url: StoreUrl) -> "EtcdConfig":
    from kvplane_services.adapters.etcd.config import (  # noqa: PLC0415 - see above
        EtcdConfig,
        SettingNames,
    )

    try:
        return EtcdConfig(
            endpoints=url.endpoints,
            user=section.user,
            password=section.password.get_secret_value(),
            tls=_tls(section),
            timeout=section.timeout,
            try_timeout=section.try_timeout,
            silence=section.silence,
            names=SettingNames(
                user=_USER, password=_PASSWORD, authorities=_CA, certificate=_CERT, key=_KEY
            ),
        )
    except ValueError as error:
        raise InvalidRequest(f"settings, section store: {error}", field="store") from error


def _tls(section: StoreSection) -> Tls | None:
    if (section.tls_cert is None) != (section.tls_key is None):
        raise InvalidRequest(f"a certificate for etcd needs both {_CERT} and {_KEY}", field=_CERT)
    if section.tls_ca is None and section.tls_cert is None:
        return None
    return Tls(
        root_certificates=_pem(section.tls_ca, _CA),
        certificate_chain=_pem(section.tls_cert, _CERT),
        private_key=_pem(section.tls_key, _KEY),
    )


def _pem(file: Path | None, setting: str) -> bytes | None:
    return None if file is None else read_pem(file, setting=setting)


def _backend(kind: StoreKind, config: "EtcdConfig", *, clock: Clock) -> "EtcdBackend":
    if kind is StoreKind.ETCD:
        from kvplane_services.adapters.etcd.grpc_backend import (  # noqa: PLC0415 - see above
            GrpcBackend,
        )

        return GrpcBackend(config, clock=clock)
    from kvplane_services.adapters.etcd.etcd3_backend import (  # noqa: PLC0415 - see above
        Etcd3Backend,
    )

    return Etcd3Backend(config, clock=clock)


async def _open(store: "EtcdStore", *, target: str, seconds: float, clock: Clock) -> None:
    """Opens a store that may be starting itself, and says so if that takes a while."""
    deadline = clock.now() + seconds
    backoff = Backoff(first=0.2, longest=2.0)

    async def explain() -> None:
        await clock.sleep(_PATIENCE)
        say(f"waiting for etcd at {target}, for up to {seconds:g} s")

    async with background(explain()):
        while True:
            try:
                await store.open()
                return
            except Unavailable:
                wait = backoff.next()
                if clock.now() + wait >= deadline:
                    raise
            await clock.sleep(wait)
