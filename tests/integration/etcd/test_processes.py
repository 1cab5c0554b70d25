"""Processes of a plane on a real etcd, and on one that is not as it should be."""

import asyncio
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kvplane.client.names import SessionKey
from kvplane.client.plane import Plane
from kvplane_services.clock import SystemClock
from tests.contract.etcd_backend.odd_etcd import serving
from tests.integration.processes.kvplane_process import running
from tests.support.certificates import Authority, ServerTls
from tests.support.etcd import EtcdNode, etcd_folder, free_port, running_node

USER, PASSWORD = "plane", "a long secret"
# Names of stores: the project's own client of etcd, and the package etcd3.
CLIENTS = ("etcd", "etcd3")
PROCESSES = ("up", "leases", "registry")


@pytest.fixture(scope="module")
def node() -> Iterator[EtcdNode]:
    with running_node() as node:
        yield node


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdNode]:
    """An etcd that wants a password."""
    with running_node() as node:
        node.enable_auth(USER, PASSWORD, prefix="/kvplane/v1/")
        yield node


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[EtcdNode]:
    """An etcd that speaks TLS, to those who have a certificate."""
    with running_node(tls=ServerTls(authority, client_certificates=True)) as node:
        yield node


@pytest.fixture
def pem(tmp_path: Path, authority: Authority) -> Mapping[str, Path]:
    """Certificates, by name: of the authority, ours with its key, and of strangers."""
    ours, stranger = authority.issue("plane.example"), Authority()
    theirs = stranger.issue("plane.example")
    texts = {
        "ca": authority.certificate,
        "cert": ours.certificate,
        "key": ours.key,
        "strange_ca": stranger.certificate,
        "strange_cert": theirs.certificate,
        "strange_key": theirs.key,
        "junk": b"junk\n",
    }
    files = {name: tmp_path / f"{name}.pem" for name in texts}
    for name, text in texts.items():
        files[name].write_bytes(text)
    return files


def arguments(process: str, store: str, *more: str) -> list[str]:
    http = ["--http", "127.0.0.1:0"] if process == "up" else []
    return [process, "--grpc", "127.0.0.1:0", *http, "--store", store, *more]


def settings(folder: Path, text: str) -> tuple[str, str]:
    """A settings file, as an argument."""
    file = folder / "kvplane.toml"
    file.write_text(f"[store]\n{text}\n", encoding="utf-8")
    return "--config", str(file)


async def refusal(*given: str) -> str:
    """The one line that a process says which does not start, besides that it waits."""
    async with running(*given) as process:
        assert await process.ended() == 1
        lines = [line for line in process.lines if not line.startswith("kvplane: waiting for etcd")]
    [line] = lines
    assert line.startswith("kvplane: ")
    return line.removeprefix("kvplane: ")


# -- What works ------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("process", PROCESSES)
async def test_processes_run_on_etcd(process: str, client: str, node: EtcdNode) -> None:
    """Each process that keeps state starts on etcd, writes there, and ends in good order."""
    async with running(*arguments(process, f"{client}://{node.endpoint}")) as started:
        await started.address("gRPC")
        assert await started.end() == 0
        assert not any("Traceback" in line for line in started.lines)


@pytest.mark.parametrize("client", CLIENTS)
async def test_replicas_share_what_is_there(client: str, node: EtcdNode) -> None:
    """A session that one process created is there after it ended, and at another."""
    prefix = f"{client}://{node.endpoint}?prefix=/kvplane/shared-{client}/"
    key = SessionKey("t", "m", "", "s")
    async with running(*arguments("registry", prefix)) as one:
        async with Plane(await one.address("gRPC")) as plane:
            await plane.sessions.create(key)
        async with (
            running(*arguments("registry", prefix)) as other,
            Plane(await other.address("gRPC")) as plane,
        ):
            assert (await plane.sessions.get(key)).name == key.name


async def test_a_password(guarded: EtcdNode, tmp_path: Path) -> None:
    """A user with a password may use an etcd that asks for one, at its own prefix."""
    config = settings(tmp_path, f'user = "{USER}"\npassword = "{PASSWORD}"')
    async with running(*arguments("leases", f"etcd://{guarded.endpoint}", *config)) as process:
        await process.address("gRPC")
        assert not any("WARNING" in line for line in process.lines)


async def test_certificates(mutual: EtcdNode, pem: Mapping[str, Path]) -> None:
    """Certificates may be named in the URL."""
    options = f"tls_ca={pem['ca']}&tls_cert={pem['cert']}&tls_key={pem['key']}"
    async with running(*arguments("leases", f"etcd://{mutual.endpoint}?{options}")) as process:
        await process.address("gRPC")


async def test_etcd_that_comes_later(tmp_path: Path) -> None:
    """A process that is started before etcd waits for it, says so, and then serves."""
    with etcd_folder() as folder:
        node = EtcdNode(folder)
        try:
            async with running(*arguments("up", f"etcd://{node.endpoint}")) as process:
                await process.until_said(f"waiting for etcd at {node.endpoint}, for up to 20 s")
                assert not any("ready" in line for line in process.lines)
                await asyncio.to_thread(node.start)
                await process.address("gRPC")
                assert await process.end() == 0
        finally:
            node.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_that_waits_for_etcd_ends_when_told_to(number: signal.Signals) -> None:
    """There is nothing to finish, so a signal ends it at once."""
    async with running(*arguments("leases", f"etcd://127.0.0.1:{free_port()}")) as process:
        await process.until_said("waiting for etcd")
        started = SystemClock().now()
        assert await process.end(number) != 0
        assert SystemClock().now() - started < 3


# -- What does not ---------------------------------------------------------------------------------


@pytest.fixture
def impatient(tmp_path: Path) -> tuple[str, str]:
    """Does not wait for etcd."""
    return settings(tmp_path, "start_timeout = 0\ntimeout = 1\ntry_timeout = 1")


@pytest.mark.parametrize("process", PROCESSES)
async def test_nobody_there(process: str, impatient: tuple[str, str]) -> None:
    """An address where nobody listens ends every process, before it serves anything."""
    address = f"127.0.0.1:{free_port()}"

    line = await refusal(*arguments(process, f"etcd://{address}", *impatient))

    assert line == f"etcd at {address} cannot be reached, nobody listens there: check the address"


async def test_nobody_there_for_a_while(tmp_path: Path) -> None:
    """By default it says that it waits, and gives up after a while with the reason."""
    config = settings(tmp_path, "start_timeout = 2\ntimeout = 1\ntry_timeout = 1")
    address = f"127.0.0.1:{free_port()}"
    async with running(*arguments("leases", f"etcd://{address}", *config)) as process:
        assert await process.ended() == 1
        waiting, failed = process.lines

    assert waiting == f"kvplane: waiting for etcd at {address}, for up to 2 s"
    assert "nobody listens there" in failed


async def test_no_such_name(impatient: tuple[str, str]) -> None:
    """A name that cannot be resolved is said to be one."""
    line = await refusal(*arguments("leases", "etcd://etcd.invalid:2379", *impatient))

    assert "a name that cannot be resolved" in line


async def test_somebody_else_there(impatient: tuple[str, str]) -> None:
    """What answers there but is no etcd is told from one that is away."""
    async with running("leases", "--grpc", "127.0.0.1:0") as leases:
        address = await leases.address("gRPC")
        line = await refusal(*arguments("leases", f"etcd://{address}", *impatient))
    assert line == f"etcd at {address} is no etcd v3: check the address"


async def test_an_old_version(impatient: tuple[str, str]) -> None:
    """An etcd that is too old is refused by its version."""
    async with serving(version="3.3.27") as address:
        line = await refusal(*arguments("leases", f"etcd://{address}", *impatient))
    assert "has version 3.3.27, and kvplane needs 3.4 or later" in line


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "give both (store.user, KVPLANE_STORE__PASSWORD)"),
        (f'user = "{USER}"\npassword = "wrong"', "with this password: check store.user"),
        (f'user = "{USER}"', "'plane' without a password: set KVPLANE_STORE__PASSWORD"),
        ('user = "nobody"\npassword = "wrong"', "does not take user 'nobody'"),
        (f'password = "{PASSWORD}"', "without a user: name the user too (store.user)"),
        (
            f'user = "{USER}"\npassword = "{PASSWORD}"\nprefix = "/other/"',
            "grant reading and writing of everything under the store's prefix",
        ),
    ],
)
async def test_wrong_passwords(guarded: EtcdNode, tmp_path: Path, given: str, words: str) -> None:
    """What is wrong with user, password or rights is said at once, and the password never is."""
    config = settings(tmp_path, given)

    line = await refusal(*arguments("leases", f"etcd://{guarded.endpoint}", *config))

    assert words in line
    assert PASSWORD not in line


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({}, "may want TLS: set store.tls_ca"),
        ({"tls_ca": "ca"}, "give one, and its key (store.tls_cert, store.tls_key)"),
        (
            {"tls_ca": "strange_ca", "tls_cert": "cert", "tls_key": "key"},
            "the authority that signed it (store.tls_ca)",
        ),
        (
            {"tls_ca": "ca", "tls_cert": "strange_cert", "tls_key": "strange_key"},
            "give one that its authority signed (store.tls_cert, store.tls_key)",
        ),
        ({"tls_ca": "ca", "tls_cert": "cert"}, "needs both store.tls_cert and store.tls_key"),
        ({"tls_ca": "ca", "tls_cert": "cert", "tls_key": "strange_key"}, "store.tls_key"),
        ({"tls_ca": "junk"}, "PEM"),
        ({"tls_ca": "absent"}, "store.tls_ca: "),
        ({"tls_cert": "cert", "tls_key": "absent"}, "store.tls_key: "),
    ],
)
async def test_wrong_certificates(
    mutual: EtcdNode,
    pem: Mapping[str, Path],
    impatient: tuple[str, str],
    names: Mapping[str, str],
    words: str,
) -> None:
    """What is wrong with certificates is said, and what to do about it."""
    absent = pem["ca"].with_name("absent.pem")
    options = "&".join(f"{option}={pem.get(name, absent)}" for option, name in names.items())

    line = await refusal(*arguments("leases", f"etcd://{mutual.endpoint}?{options}", *impatient))

    assert words in line


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:6379", "name memory, etcd://HOST:PORT,HOST:PORT or etcd3://HOST:PORT"),
        ("etcd", "name memory"),
        ("https://127.0.0.1:2379", "write etcd://HOST:PORT,HOST:PORT; with store.tls_ca"),
        ("etcds://user:secret@127.0.0.1:2379", "etcds://...' is no store: write etcd://"),
        ("etcd://", "is not an address"),
        ("etcd://127.0.0.1", "expected host:port"),
        ("etcd://127.0.0.1:0", "port 0"),
        ("etcd://127.0.0.1:2379/path", "expected host:port"),
        ("etcd://user:secret@127.0.0.1:2379", "KVPLANE_STORE__PASSWORD"),
        ("etcd://127.0.0.1:2379?password=secret", "KVPLANE_STORE__PASSWORD"),
        ("etcd://127.0.0.1:2379?prefix=kvplane", "no prefix of keys"),
        ("etcd://127.0.0.1:2379?color=red", "color is no option"),
        ("etcd://127.0.0.1:2379?prefix", "not of the form name=value"),
        ("etcd3://127.0.0.1:2379,127.0.0.1:2380", "etcd3 speaks to one address"),
    ],
)
async def test_wrong_urls(url: str, words: str) -> None:
    """A URL that names no store is refused before anybody is called, without its secrets."""
    line = await refusal(*arguments("up", url))

    assert words in line
    assert "secret" not in line


async def test_settings_that_do_not_fit(node: EtcdNode, tmp_path: Path) -> None:
    """One try cannot take longer than all of them."""
    config = settings(tmp_path, "timeout = 1\ntry_timeout = 2")

    line = await refusal(*arguments("leases", f"etcd://{node.endpoint}", *config))

    assert line.startswith("settings, section store: ")


async def test_a_taken_address_leaves_nothing_behind(node: EtcdNode) -> None:
    """A process that cannot listen ends in one line although it had opened the store."""
    async with running("leases", "--grpc", "127.0.0.1:0") as other:
        taken = await other.address("gRPC")
        line = await refusal("leases", "--grpc", taken, "--store", f"etcd://{node.endpoint}")
    assert line == f"cannot listen on {taken}: Address already in use"
