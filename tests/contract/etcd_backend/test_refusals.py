"""Each thing that can be wrong gives one line that names the address and says what to do."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from kvplane.client.channel import Tls
from kvplane_services.adapters.etcd.backend import CompactedError, NoRoom, PutOp
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.errors import StoreRefused, Unavailable
from tests.contract.etcd_backend.odd_etcd import compacted_underneath, serving
from tests.support.certificates import Authority, ServerTls
from tests.support.etcd import EtcdNode, free_port, running_node
from tests.support.etcd_backends import MakeBackend


@pytest.fixture(scope="module")
def stranger() -> Authority:
    """Whom etcd does not trust."""
    return Authority()


@pytest.fixture(scope="module")
def misnamed(authority: Authority) -> Iterator[EtcdNode]:
    """An etcd with a certificate for another name."""
    with running_node(tls=ServerTls(authority, names=("etcd.example",))) as node:
        yield node


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[EtcdNode]:
    """An etcd that wants a certificate of its clients."""
    with running_node(tls=ServerTls(authority, client_certificates=True)) as node:
        yield node


async def unavailable(make: MakeBackend, config: EtcdConfig) -> str:
    """What is said when etcd cannot be reached."""
    with pytest.raises(Unavailable) as caught:
        await make(config).connect()
    return line(caught.value.message, config)


async def refused(make: MakeBackend, config: EtcdConfig) -> str:
    """What is said when etcd, or who is taken for it, will not do."""
    with pytest.raises(StoreRefused) as caught:
        await make(config).connect()
    return line(caught.value.message, config)


def line(message: str, config: EtcdConfig) -> str:
    """A message that is one line and names the address, and no secret."""
    assert "\n" not in message
    assert config.target in message
    assert not config.password or config.password not in message
    return message


async def test_nobody_listens(make: MakeBackend) -> None:
    """A wrong port is told from an etcd that says no."""
    config = EtcdConfig((f"127.0.0.1:{free_port()}",), timeout=0.5, try_timeout=0.5)

    assert "nobody listens there: check the address" in await unavailable(make, config)


async def test_no_such_host(make: MakeBackend) -> None:
    """A name that means nothing is told as such."""
    config = EtcdConfig(("no-such-host.invalid:2379",), timeout=0.5, try_timeout=0.5)

    assert "has a name that cannot be resolved: check" in await unavailable(make, config)


async def test_several_addresses(make_for_several: MakeBackend) -> None:
    """Each of several addresses is named with what is wrong with it."""
    ports = (free_port(), free_port())
    config = EtcdConfig(tuple(f"127.0.0.1:{port}" for port in ports), timeout=0.5, try_timeout=0.5)

    with pytest.raises(Unavailable) as caught:
        await make_for_several(config).connect()

    assert caught.value.message.count("nobody listens there") == 2
    assert all(str(port) in caught.value.message for port in ports)


async def test_frozen_etcd(make: MakeBackend, node: EtcdNode) -> None:
    """An etcd that takes connections and answers nothing is told as such."""
    config = EtcdConfig((node.endpoint,), timeout=0.5, try_timeout=0.5)
    node.pause()

    assert "does not answer in time" in await unavailable(make, config)


async def test_no_etcd(make: MakeBackend, etcd_node: EtcdNode) -> None:
    """The port of something else that speaks HTTP is no etcd."""
    config = EtcdConfig((etcd_node.status_endpoint,), timeout=0.5, try_timeout=0.5)

    assert "is no etcd, or this is not its port for clients" in await refused(make, config)


async def test_untrusted_certificate(
    make: MakeBackend, encrypted: EtcdNode, stranger: Authority
) -> None:
    """A certificate that our authority did not sign is not trusted."""
    config = EtcdConfig((encrypted.endpoint,), tls=Tls(root_certificates=stranger.certificate))

    said = await refused(make, config)

    assert "has a certificate that is not trusted (unable to get local issuer" in said
    assert "give the certificate of the authority that signed it" in said


async def test_certificate_for_another_name(
    make: MakeBackend, misnamed: EtcdNode, authority: Authority
) -> None:
    """A certificate that names another host is not taken for this one."""
    config = EtcdConfig((misnamed.endpoint,), tls=Tls(root_certificates=authority.certificate))

    assert "has a certificate for another name" in await refused(make, config)


async def test_no_certificate_of_our_own(
    make: MakeBackend, mutual: EtcdNode, authority: Authority
) -> None:
    """An etcd that wants a certificate is told from one that dislikes ours."""
    config = EtcdConfig((mutual.endpoint,), tls=Tls(root_certificates=authority.certificate))

    assert "wants a certificate from its clients: give one" in await refused(make, config)


async def test_foreign_certificate_of_our_own(
    make: MakeBackend, mutual: EtcdNode, authority: Authority, stranger: Authority
) -> None:
    """A certificate of ours that etcd's authority did not sign is not taken."""
    ours = stranger.issue("plane.example")
    config = EtcdConfig(
        (mutual.endpoint,),
        tls=Tls(
            root_certificates=authority.certificate,
            private_key=ours.key,
            certificate_chain=ours.certificate,
        ),
    )

    assert "does not take our certificate" in await refused(make, config)


@pytest.mark.parametrize("broken", ["authority", "key"])
async def test_unusable_certificates(
    make: MakeBackend, mutual: EtcdNode, authority: Authority, broken: str
) -> None:
    """Certificates that are none, and keys of other certificates, are told as such."""
    ours, another = authority.issue("plane.example"), authority.issue("plane.example")
    config = EtcdConfig(
        (mutual.endpoint,),
        tls=Tls(
            root_certificates=b"junk" if broken == "authority" else authority.certificate,
            private_key=another.key if broken == "key" else ours.key,
            certificate_chain=ours.certificate,
        ),
    )

    assert "cannot be spoken to with these certificates" in await refused(make, config)


async def test_plain_text_to_tls(make: MakeBackend, encrypted: EtcdNode) -> None:
    """An etcd that hangs up on plain text may want TLS."""
    config = EtcdConfig((encrypted.endpoint,), timeout=0.5, try_timeout=0.5)

    assert "hangs up: it may want TLS" in await unavailable(make, config)


async def test_tls_to_plain_text(
    make: MakeBackend, etcd_node: EtcdNode, authority: Authority
) -> None:
    """An etcd that hangs up on TLS may speak none."""
    config = EtcdConfig(
        (etcd_node.endpoint,),
        tls=Tls(root_certificates=authority.certificate),
        timeout=0.5,
        try_timeout=0.5,
    )

    assert "hangs up: it may speak no TLS" in await unavailable(make, config)


async def test_passwords(make: MakeBackend, node: EtcdNode) -> None:
    """A wrong password, an unknown user and none at all are each told as such."""
    node.enable_auth("kvplane", "right", prefix="/kvplane/")

    for user in ("kvplane", "nobody"):
        wrong = EtcdConfig((node.endpoint,), user=user, password="secret-and-wrong")
        assert f"does not take user '{user}' with this password" in await refused(make, wrong)
    none = EtcdConfig((node.endpoint,))
    assert "wants a user and a password: give both" in await refused(make, none)


@pytest.mark.parametrize("version", ["3.3.27", "2.3.8", ""])
async def test_old_version(make: MakeBackend, version: str) -> None:
    """An etcd before 3.4 is refused, with its version."""
    async with serving(version=version) as address:
        said = await refused(make, EtcdConfig((address,)))

    assert f"has version {version or 'unknown'}, and kvplane needs 3.4 or later: upgrade" in said


async def test_full_etcd(make: MakeBackend) -> None:
    """An etcd that takes no more writes until somebody helps says so, and still answers reads."""
    with running_node(arguments=["--quota-backend-bytes=2000000"]) as node:
        config = EtcdConfig((node.endpoint,))
        backend = make(config)

        async def fill() -> None:
            # etcd compares with its quota when it has written to disk, which it does at intervals.
            for number in itertools.count():
                await backend.txn([], [PutOp(b"/%d" % number, b"x" * 100_000)])

        with pytest.raises(NoRoom) as caught:
            async with asyncio.timeout(20):
                await fill()

        said = line(caught.value.message, config)
        assert "is full: compact and defragment it, then `etcdctl alarm disarm`" in said
        _, found = await backend.get(b"/0")
        assert found is not None
        await make(config).connect()


@pytest.mark.parametrize("size", [1_600_000, 3_000_000])
async def test_large_write(make: MakeBackend, etcd_node: EtcdNode, size: int) -> None:
    """A write that etcd does not take is refused in words that name its setting."""
    config = EtcdConfig((etcd_node.endpoint,))

    with pytest.raises(StoreRefused) as caught:
        await make(config).txn([], [PutOp(b"/large", b"x" * size)])

    assert "raise its --max-request-bytes" in line(caught.value.message, config)


async def test_too_many_operations(make: MakeBackend, etcd_node: EtcdNode) -> None:
    """More changes at once than etcd allows are refused in words that name its setting."""
    config = EtcdConfig((etcd_node.endpoint,))

    with pytest.raises(StoreRefused) as caught:
        await make(config).txn([], [PutOp(b"/%d" % n, b"") for n in range(129)])

    assert "raise its --max-txn-ops" in line(caught.value.message, config)


async def test_compaction_between_pages(make: MakeBackend) -> None:
    """A range whose revision is compacted while it is read starts over, and gives up in the end."""
    async with serving(read=compacted_underneath(2)) as address:
        found = await make(EtcdConfig((address,))).range(b"/")
    assert [item.key for item in found.items] == [b"/a", b"/b"]
    assert found.header.revision == 40

    async with serving(read=compacted_underneath(1_000)) as address:
        backend = make(EtcdConfig((address,)))
        with pytest.raises(Unavailable, match="compacted again and again"):
            await backend.range(b"/")
        with pytest.raises(CompactedError):
            assert [page.items async for page in backend.pages(b"/")] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"endpoints": ()}, "at least one endpoint"),
        ({"endpoints": ("no port",)}, "is not an address"),
        ({"endpoints": ("a:1",), "password": "x"}, "without a user"),
        ({"endpoints": ("a:1",), "try_timeout": 0}, "positive"),
        ({"endpoints": ("a:1",), "timeout": 1, "try_timeout": 2}, "within the timeout"),
        ({"endpoints": ("a:1",), "silence": 0}, "positive"),
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, object], said: str) -> None:
    """What cannot work is refused before anything is called."""
    with pytest.raises(ValueError, match=said):
        EtcdConfig(**wrong)  # type: ignore[arg-type]


def test_settings_keep_secrets() -> None:
    """Neither password nor key is shown where settings are printed."""
    shown = repr(EtcdConfig(("a:1",), user="u", password="hidden", tls=Tls(private_key=b"hidden")))

    assert "hidden" not in shown
