import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from kvplane.client.channel import Tls
from kvplane_services.adapters.etcd.backend import Changed, EtcdBackend, PutOp
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.errors import StoreRefused
from tests.support.certificates import Authority, ServerTls
from tests.support.etcd import EtcdNode, running_node
from tests.support.etcd_backends import MakeBackend

USER, PASSWORD, PREFIX = "kvplane", "a long secret", b"/kvplane/"


@pytest.fixture
def guarded(node: EtcdNode) -> EtcdNode:
    """An etcd that wants a password, and lets our user at one prefix only."""
    node.enable_auth(USER, PASSWORD, prefix=PREFIX.decode())
    return node


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[EtcdNode]:
    """An etcd that speaks TLS only, to those with a certificate."""
    with running_node(tls=ServerTls(authority, client_certificates=True)) as node:
        yield node


def with_password(node: EtcdNode) -> EtcdConfig:
    """How our user gets at a guarded etcd."""
    return EtcdConfig((node.endpoint,), user=USER, password=PASSWORD)


async def use(backend: EtcdBackend) -> None:
    """Does everything that a store does."""
    header = await backend.connect()
    lease = await backend.grant(60)
    done = await backend.txn([], [PutOp(PREFIX + b"a", b"1", lease)])
    assert (await backend.get(PREFIX + b"a"))[1] == (await backend.range(PREFIX)).items[0]
    async for batch in backend.watch(PREFIX, start_revision=header.revision + 1):
        if batch.events:
            [event] = batch.events
            assert isinstance(event, Changed)
            assert event.item.mod_revision == done.header.revision
            break
    assert [answer async for answer in backend.keep_alive(one(lease))] == [(lease, 60)]
    await backend.revoke(lease)


async def one(lease: int) -> AsyncIterator[int]:
    """Names one etcd lease."""
    yield lease


async def test_tls(make: MakeBackend, encrypted: EtcdNode, authority: Authority) -> None:
    """An etcd whose certificate our authority signed is trusted, by address and by name."""
    tls = Tls(root_certificates=authority.certificate)

    await use(make(EtcdConfig((encrypted.endpoint,), tls=tls)))
    await use(make(EtcdConfig((f"localhost:{encrypted.port}",), tls=tls)))


async def test_mutual_tls(make: MakeBackend, mutual: EtcdNode, authority: Authority) -> None:
    """With a certificate of our own we are let in."""
    ours = authority.issue("plane.example", common_name="plane")

    await use(
        make(
            EtcdConfig(
                (mutual.endpoint,),
                tls=Tls(
                    root_certificates=authority.certificate,
                    private_key=ours.key,
                    certificate_chain=ours.certificate,
                ),
            )
        )
    )


async def test_password(make: MakeBackend, guarded: EtcdNode) -> None:
    """With user and password all calls and streams are allowed under our prefix."""
    await use(make(with_password(guarded)))


async def test_other_keys_are_not_ours(make: MakeBackend, guarded: EtcdNode) -> None:
    """What etcd does not permit is refused in words that say what to grant."""
    backend = make(with_password(guarded))
    await backend.connect()

    with pytest.raises(StoreRefused, match="does not let user 'kvplane' do that: grant"):
        await backend.txn([], [PutOp(b"/other", b"")])
    with pytest.raises(StoreRefused, match="does not let user 'kvplane' do that: grant"):
        await backend.range(b"/other/")
    with pytest.raises(StoreRefused, match="does not let user 'kvplane' do that: grant"):
        await anext(backend.watch(b"/other/", start_revision=1))
    await use(backend)


async def test_expired_token_is_renewed(make: MakeBackend, guarded: EtcdNode) -> None:
    """When etcd forgets its tokens, as with every restart, calls and watches draw new ones."""
    backend = make(with_password(guarded))
    header = await backend.connect()

    await restart(guarded)
    done = await backend.txn([], [PutOp(PREFIX + b"a", b"1")])
    await restart(guarded)
    await anext(backend.watch(PREFIX, start_revision=header.revision + 1))
    await restart(guarded)
    lease = await backend.grant(60)

    assert done.succeeded
    assert [answer async for answer in backend.keep_alive(one(lease))] == [(lease, 60)]


async def test_many_calls_renew_a_token_at_once(make: MakeBackend, guarded: EtcdNode) -> None:
    """All calls that meet an expired token succeed."""
    backend = make(with_password(guarded))
    await backend.connect()
    await restart(guarded)

    done = await asyncio.gather(
        *(backend.txn([], [PutOp(PREFIX + b"%d" % n, b"")]) for n in range(50))
    )

    assert all(result.succeeded for result in done)


async def test_change_of_permissions(make: MakeBackend, guarded: EtcdNode) -> None:
    """A change of etcd's users does not keep us from writing."""
    backend = make(with_password(guarded))
    await backend.connect()
    guarded.call_as("root", PASSWORD, "auth/user/add", {"name": "another", "password": "x"})

    await use(backend)


async def test_password_that_nobody_asks_for(
    make: MakeBackend, node: EtcdNode, caplog: pytest.LogCaptureFixture
) -> None:
    """An etcd without passwords serves us, with a warning; one that begins to ask goes on to."""
    backend = make(with_password(node))
    await use(backend)

    assert "etcd asks for no password" in caplog.text
    node.enable_auth(USER, PASSWORD, prefix=PREFIX.decode())
    await use(backend)


async def restart(node: EtcdNode) -> None:
    """Ends etcd and starts it with its data."""
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)
