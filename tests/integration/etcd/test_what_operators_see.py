"""What operators see of replicas and their store: ids, homes, and whether etcd answers."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from kvplane.client import Plane, SessionKey
from kvplane_services.store.commits import store_away
from tests.integration.processes.kvplane_process import Process, running
from tests.support.etcd import EtcdNode
from tests.support.programs import wait_until


def up(node: EtcdNode) -> tuple[str, ...]:
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    return ("up", *addresses, "--store", f"etcd://{node.endpoint}")


async def replica_of(process: Process, node: EtcdNode) -> str:
    """The id that a replica prints."""
    state = f", state in etcd at {node.endpoint}, under /kvplane/v1/"
    await process.until_said(state)
    [line] = [line for line in process.lines if line.endswith(state)]
    return line.removeprefix("kvplane: ").removesuffix(state)


async def engines(plane: str, *command: str) -> Any:
    """What `kvplane engines` answers."""
    asked = ("engines", *command, "--plane", plane, "--output", "json")
    async with running(*asked) as process:
        assert await process.ended() == 0, process.lines
        return json.loads("\n".join(process.lines))


async def listed(plane: str) -> Any:
    """The only engine, once it is there."""
    while True:
        found = (await engines(plane, "list"))["engines"]
        if found:
            [engine] = found
            return engine


def members(node: EtcdNode) -> list[str]:
    """Ids of the registries that etcd knows as alive."""
    first, end = ("/kvplane/v1/members" + last for last in "/0")
    asked = {
        name: base64.b64encode(key.encode()).decode()
        for name, key in (("key", first), ("range_end", end))
    }
    keys = [base64.b64decode(found["key"]) for found in node.call("kv/range", asked)["kvs"]]
    return sorted(key.decode().removeprefix(first) for key in keys)


def gauge(http: str, name: str) -> float:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{http}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


async def until(holds: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, holds, seconds=30, what=what)


async def test_home_and_store(node: EtcdNode) -> None:
    """An engine's home is named by the id that it printed; metrics say when etcd is away."""
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(running(*up(node))) for _ in range(2)]
        ids = [await replica_of(process, node) for process in (one, other)]
        assert ids[0] != ids[1]
        await until(lambda: members(node) == sorted(ids), "both alive")

        planes = [await process.address("gRPC") for process in (one, other)]
        sim = ("sim-engine", "--role", "decode", "--http", "127.0.0.1:0", "--plane", planes[0])
        await stack.enter_async_context(running(*sim))
        found = [await listed(plane) for plane in planes]
        assert [each["replica"] for each in found] == [ids[0]] * 2

        http = await one.address("HTTP")
        assert gauge(http, "kvplane_store_reachable") == 1
        await until(lambda: not gauge(http, "kvplane_store_pending_writes"), "all written")
        node.pause()
        # It is told to wait, and its wish is kept.
        order = ("engines", "drain", found[0]["name"], "--plane", planes[0])
        async with running(*order) as drain:
            assert await drain.ended() == 1
        await until(lambda: not gauge(http, "kvplane_store_reachable"), "etcd away")
        assert gauge(http, "kvplane_store_pending_writes") >= 1
        node.resume()
        await until(lambda: gauge(http, "kvplane_store_reachable") == 1, "etcd back")
        await until(lambda: not gauge(http, "kvplane_store_pending_writes"), "all written")


async def test_what_is_said_of_an_etcd_that_is_away(node: EtcdNode) -> None:
    """Calls are told alike, and not where etcd is; a loss of its data is one line of the log."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(running(*up(node))) for _ in range(2)]
        planes = [await process.address("gRPC") for process in replicas]
        sim = ("sim-engine", "--role", "decode", "--http", "127.0.0.1:0")
        await stack.enter_async_context(running(*sim, "--plane", ",".join(planes)))
        engine, _ = [(await listed(plane))["name"] for plane in planes]
        model = ("--model", "m", "--plane", planes[0])
        async with Plane(planes[0]) as client:
            await client.sessions.create(SessionKey("default", "m", "", "s"))

        node.kill()
        for command in (
            ("engines", "drain", engine, "--plane", planes[0]),
            ("engines", "drain", engine, "--plane", planes[1]),
            ("sessions", "end", "s", *model),
        ):
            async with running(*command) as refused:
                assert await refused.ended() == 1
                assert [line.removesuffix(" (retry in 1 s)") for line in refused.lines] == [
                    f"kvplane: {store_away().message}"
                ]
        node.wipe()
        node.start()
        for process in replicas:
            await process.until_said("has lost its data")
        await until(lambda: len(members(node)) == 2, "both put back")
        for process in replicas:
            said = "\n".join(process.lines)
            assert said.count("has lost its data") == 1
            assert "starts over" not in said
            assert "no longer has the lease" not in said
