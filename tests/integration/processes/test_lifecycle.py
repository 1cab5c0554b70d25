"""How processes start, stop and refuse to start."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client.names import SessionKey
from kvplane.client.plane import Plane
from tests.integration.processes.kvplane_process import running
from tests.support.plane_process import free_port

TLS = Path(__file__).parents[1] / "state" / "tls"


async def test_up_serves_everything_and_stops_in_order() -> None:
    """`kvplane up` says where it listens, answers there, and ends with 0 on SIGTERM."""
    async with running("up", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0") as up:
        async with Plane(await up.address("gRPC")) as plane:
            assert [engine async for engine in plane.engines.list()] == []
        url = f"http://{await up.address('HTTP')}/health"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 200
        assert await up.end() == 0
        assert any("stopping" in line for line in up.lines)
        assert not any("Traceback" in line or "Error" in line for line in up.lines)


async def test_open_watches_do_not_hold_the_stop_up() -> None:
    """A client that watches does not keep a stopping process alive."""
    async with (
        running("leases", "--grpc", "127.0.0.1:0") as leases,
        Plane(await leases.address("gRPC")) as plane,
    ):
        await anext(plane.engines.watch())
        async with asyncio.timeout(5):
            assert await leases.end() == 0


async def test_second_signal_ends_at_once() -> None:
    """While a turn holds the stop up, a second signal does not wait for it."""
    async with slow_engine() as engine:
        arguments = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--engine", f"both={engine}")
        async with running("up", *arguments) as up:
            url = f"http://{await up.address('HTTP')}"
            await up.until_said("serves slow")
            async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
                turn = tasks.create_task(ask(session, url))
                await asyncio.sleep(0.5)
                up.signal(signal.SIGTERM)
                await up.until_said("stopping")
                await asyncio.sleep(0.5)
                up.signal(signal.SIGTERM)
                async with asyncio.timeout(5):
                    assert await up.ended() == -signal.SIGTERM
                assert await turn == "cut"


async def test_named_engine_is_found_lost_and_found_again(tmp_path: Path) -> None:
    """An engine named by hand is registered once it answers, lost when it stops to, and back."""
    settings = tmp_path / "kvplane.toml"
    settings.write_text(
        "[registration]\nmin_ttl = 0.5\nheartbeat_interval = 0.2\n"
        "[prober]\ninterval = 0.1\ntimeout = 0.4\nfailures = 1\n"
    )
    port = free_port()
    named = ("--config", str(settings), "--engine", f"decode=http://127.0.0.1:{port}")
    async with (
        running("leases", "--grpc", "127.0.0.1:0", *named) as leases,
        Plane(await leases.address("gRPC")) as plane,
    ):
        async with slow_engine(port):
            found = await only_engine(plane, engine_pb2.Engine.STATE_ACTIVE)
            assert list(found.models) == ["slow"]
            assert found.build.connector == found.build.CONNECTOR_STOCK
        await only_engine(plane, engine_pb2.Engine.STATE_LOST)
        async with slow_engine(port):
            again = await only_engine(plane, engine_pb2.Engine.STATE_ACTIVE)
        assert (again.name, again.epoch > found.epoch) == (found.name, True)


@pytest.mark.parametrize("process", ["up", "registry"])
async def test_session_settings_reach_the_registry(process: str, tmp_path: Path) -> None:
    """What the settings say of sessions holds in both processes that keep them."""
    settings = tmp_path / "kvplane.toml"
    settings.write_text('[sessions]\nmax_keep_for = 200\n[gateway]\nhttp = "127.0.0.1:0"\n')
    async with (
        running(process, "--grpc", "127.0.0.1:0", "--config", str(settings)) as started,
        Plane(await started.address("gRPC")) as plane,
    ):
        session = await plane.sessions.create(SessionKey("t", "m", "", "s"), keep_for=900)
        assert session.hints.keep_for.ToSeconds() == 200


@pytest.mark.parametrize("kind", ["--grpc", "--http"])
async def test_taken_address_is_one_clear_line(kind: str) -> None:
    """An address that is taken ends the process with 1 and names it, without a traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = {"--grpc": "--http", "--http": "--grpc"}[kind]
        code, lines = await refused("up", kind, address, other, "127.0.0.1:0")
    assert code == 1
    [line] = [line for line in lines if " ready on " not in line]
    assert line == f"kvplane: cannot listen on {address}: Address already in use"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--engine", "decoder=http://h:1"), "ROLE=URL"),
        (("up", "--http", "here"), "not an address to listen on"),
        (("router", "--leases", "127.0.0.1:0"), "port 0"),
        (("leases", "--tls-cert", "/nowhere.pem"), "both grpc.tls_cert and grpc.tls_key"),
        (
            ("leases", "--tls-cert", str(TLS / "key.pem"), "--tls-key", str(TLS / "cert.pem")),
            "no certificate with its private key",
        ),
        (("leases", "--config", "/nowhere.toml"), "/nowhere.toml"),
    ],
)
async def test_bad_settings_are_one_clear_line(arguments: tuple[str, ...], words: str) -> None:
    """What is wrong with the settings is said in one line, and the process ends with 1."""
    code, lines = await refused(*arguments)
    assert code == 1
    assert [line for line in lines if line] == [next(line for line in lines if words in line)]


async def test_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    """A key that is no setting is refused by its name."""
    file = tmp_path / "kvplane.toml"
    file.write_text("[router]\nmin_pull_tokenz = 3\n")
    code, lines = await refused("up", "--config", str(file))
    assert code == 1
    assert lines == [
        f"kvplane: router.min_pull_tokenz in {file} is not a setting; did you mean min_pull_tokens?"
    ]


async def test_open_address_is_warned_of() -> None:
    """Listening beyond loopback works when asked for, and the log warns of it."""
    async with running("leases", "--grpc", "0.0.0.0:0") as leases:
        await leases.address("gRPC")
        assert any("no authentication and no encryption" in line for line in leases.lines)


async def test_json_logs_are_json() -> None:
    """With log format json every log line is one JSON object."""
    async with running("leases", "--grpc", "0.0.0.0:0", "--log-format", "json") as leases:
        await leases.address("gRPC")
        [warning] = [json.loads(line) for line in leases.lines if line.startswith("{")]
        assert warning["level"] == "warning"


async def test_simulated_engines_log_as_they_are_told() -> None:
    """Their logs have a level and a format as those of all processes."""
    options = ("--http", "127.0.0.1:0", "--plane", f"127.0.0.1:{free_port()}")
    async with running("sim-engine", *options, "--log-format", "json") as engine:
        await engine.until_said('"level": "warning"')
        assert all(json.loads(line) for line in engine.lines if not line.startswith("kvplane: "))


async def test_config_commands_show_values_and_meanings() -> None:
    """`kvplane config` prints what would be used, and what everything means."""
    shown = json.loads(await output("config", "show", "router"))
    assert shown["grpc"]["address"] == "127.0.0.1:7002"
    schema = json.loads(await output("config", "schema", "up"))
    assert (
        "transfer"
        in schema["$defs"]["RouterSection"]["properties"]["min_pull_tokens"]["description"]
    )


async def refused(*arguments: str) -> tuple[int, list[str]]:
    async with running(*arguments) as process:
        code = await process.ended()
        return code, process.lines


async def output(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "kvplane"), *arguments, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def only_engine(plane: Plane, state: engine_pb2.Engine.State.ValueType) -> engine_pb2.Engine:
    """The one engine that there is, once it is in that state."""
    async with asyncio.timeout(10):
        while True:
            engines = [one async for one in plane.engines.list()]
            if [one.state for one in engines] == [state]:
                return engines[0]
            await asyncio.sleep(0.05)


async def ask(session: aiohttp.ClientSession, url: str) -> str:
    body = {"model": "slow", "messages": [{"role": "user", "content": "hi"}]}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return str(answer.status)
    except aiohttp.ClientError:
        return "cut"


@asynccontextmanager
async def slow_engine(port: int = 0) -> AsyncIterator[str]:
    """An engine that is healthy, lists its model and never answers a turn."""

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "slow"}]})

    async def never(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    app = web.Application()
    app.add_routes(
        [
            web.get("/health", health),
            web.get("/v1/models", models),
            web.post("/v1/chat/completions", never),
        ]
    )
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
