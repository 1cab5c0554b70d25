"""What an engine costs that does nothing but retain, and what a request waits that arrives then.

Real vLLM engines on the tiny model, one after the other: with vLLM's own connector, with ours
stepping as vLLM does (rest_ms 0), and with ours. The latter two are registered at a plane, which
renews their leases. Of each: cores used by its API server, its engine core and its
workers while 24 turns are retained and no request is there; and the time of requests for one token,
with nothing retained and with the 24. At last, on an engine with ours and without a plane, how long
leases of 8 s last until their blocks are free. Linux only. Run it on a quiet machine:

    PYTHONPATH=clients/python:connector:services \
        .venv/bin/python bench/idle_cost.py [--executor uni|mp] [--rounds 1] [--json FILE]
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_services.clock import SystemClock
from kvplane_services.demo.stage import running_plane
from kvplane_services.local.engines import (
    LocalEngine,
    make_model,
    prefill_and_decode,
    running_engines,
)
from kvplane_services.local.vllm_command import EngineOptions

RETENTIONS = 24
BLOCKS = 400
LEASES, LEASE_TTL = 6, 8.0
MODEL = "kvplane-tiny"
ROOT = Path(__file__).parents[1]
IMPORT_PATHS = tuple(ROOT / part for part in ("clients/python", "connector", "services"))
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Prints a line per engine and process; writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--executor", choices=["uni", "mp"], default="uni")
    parser.add_argument("--engines", default="stock,no-rest,kvplane")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--python", default=str(ROOT / ".venv-vllm/bin/python"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measured(arguments))
    for one in found:
        print(f"{one['engine']:10}", end="")
        print("".join(f"{name} {cores:.3f}  " for name, cores in one["cores"].items()), end="")
        for when in ("nothing_retained", "retained"):
            spread = one["first_token_ms"][when]
            print(f"  {when} {spread['median']:.1f} ms (p95 {spread['p95']:.1f})", end="")
        print()
    lasted = asyncio.run(lease_lives(arguments))
    print(f"leases of {LEASE_TTL:g} s lasted", *(f"{seconds:.3f}" for seconds in lasted))
    if arguments.json:
        figures = {"executor": arguments.executor, "runs": found, "leases_lasted_s": lasted}
        arguments.json.write_text(json.dumps(figures))


async def measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry per round and engine."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = Path(arguments.python)
        await make_model(engine_python=python, folder=folder / "model", import_paths=IMPORT_PATHS)
        found: list[dict[str, Any]] = []
        async with running_plane(log_dir=folder, clock=SystemClock()) as plane:
            for _ in range(arguments.rounds):
                for kind in arguments.engines.split(","):
                    options = engine_options(kind, folder / "model", plane.grpc, arguments.executor)
                    async with running_engines(
                        options,
                        engine_python=python,
                        log_dir=folder / "logs",
                        import_paths=IMPORT_PATHS,
                    ) as (engine,):
                        found.append({"engine": kind, **await of_engine(engine, arguments)})
        return found


def engine_options(kind: str, model: Path, plane: str, executor: str) -> EngineOptions:
    """A decode engine of a kind."""
    _, decode = prefill_and_decode(model_dir=model)
    decode = dataclasses.replace(decode, arguments=("--distributed-executor-backend", executor))
    decode = dataclasses.replace(decode, blocks=BLOCKS)
    if kind == "stock":
        return dataclasses.replace(decode, connector="stock")
    rest = {"rest_ms": 0} if kind == "no-rest" else {}
    return dataclasses.replace(decode, plane=plane, settings=rest)


async def of_engine(engine: LocalEngine, arguments: argparse.Namespace) -> dict[str, Any]:
    """Cores by process, and times to the first token."""
    async with aiohttp.ClientSession(engine.url) as http:
        for _ in range(10):
            await turn(http, "warm", None)
        idle_cores = await cores(engine.process.pid, arguments.seconds / 4)
        unretained = await latencies(http, arguments.requests)
        for number in range(RETENTIONS):
            await turn(http, f"session {number} ".ljust(400, "."), f"s{number}")
        await asyncio.sleep(3)
        used = await cores(engine.process.pid, arguments.seconds)
        blocks = await retained_blocks(http)
        retained = await latencies(http, arguments.requests)
    return {
        "retentions": RETENTIONS,
        "retained_blocks": blocks,
        "cores_nothing_retained": idle_cores,
        "cores": used,
        "first_token_ms": {"nothing_retained": spread(unretained), "retained": spread(retained)},
    }


async def latencies(http: aiohttp.ClientSession, count: int) -> list[float]:
    """Milliseconds of requests for one token that come when nothing else is there."""
    random.seed(1)
    found: list[float] = []
    for number in range(count):
        # Long enough for the engine to go back to rest, and never in step with it.
        await asyncio.sleep(random.uniform(0.15, 0.3))  # noqa: S311 - no secret
        start = time.perf_counter()
        await turn(http, f"question {number}", None)
        found.append((time.perf_counter() - start) * 1000)
    return found


async def turn(http: aiohttp.ClientSession, text: str, session: str | None) -> None:
    """One request for one token, retained under a session if one is named."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "temperature": 0,
    }
    if session is not None:
        mark = TurnMark("bench", MODEL, "", session).encode()
        body["kv_transfer_params"] = {**LOCAL_ONLY, KEY: mark}
    async with http.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.read()


async def lease_lives(arguments: argparse.Namespace) -> list[float]:
    """Seconds from answers until their blocks are free, on an engine with nothing else to do."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = Path(arguments.python)
        await make_model(engine_python=python, folder=folder / "model", import_paths=IMPORT_PATHS)
        options = engine_options("kvplane", folder / "model", "", arguments.executor)
        options = dataclasses.replace(options, settings={"lease_ttl": LEASE_TTL})
        async with (
            running_engines(
                options, engine_python=python, log_dir=folder / "logs", import_paths=IMPORT_PATHS
            ) as (engine,),
            aiohttp.ClientSession(engine.url) as http,
        ):
            answered: list[float] = []
            for number in range(LEASES):
                await turn(http, f"session {number} ".ljust(400, "."), f"s{number}")
                answered.append(time.perf_counter())
                await asyncio.sleep(0.73)
            each = await used_blocks(http) / LEASES
            freed: list[float] = []
            while len(freed) < LEASES:
                left = await used_blocks(http)
                now = time.perf_counter()
                freed += [now] * (round(LEASES - left / each) - len(freed))
                await asyncio.sleep(0.01)
        return [round(end - start, 3) for start, end in zip(answered, freed, strict=True)]


async def retained_blocks(http: aiohttp.ClientSession) -> int:
    """Blocks in use at the end; fails if there are none to speak of."""
    await turn(http, "an idle engine's gauge is as old as its last step", None)
    blocks = await used_blocks(http)
    if blocks < RETENTIONS:
        raise RuntimeError(f"{blocks} blocks are in use: the engine does not retain what it should")
    return blocks


async def used_blocks(http: aiohttp.ClientSession) -> int:
    """Blocks in use after the engine's last step, as vLLM says."""
    async with http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    usage = next(line for line in lines if line.startswith("vllm:kv_cache_usage_perc{"))
    return round(float(usage.split()[-1]) * (BLOCKS - 1))


async def cores(session: int, seconds: float) -> dict[str, float]:
    """Cores that the processes of a session use, by their names."""
    before, start = cpu_seconds(session), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - start
    after = cpu_seconds(session)
    return {name: round((after[name] - before.get(name, 0)) / took, 4) for name in sorted(after)}


def cpu_seconds(session: int) -> Mapping[str, float]:
    """Seconds of CPU that the processes of a session have used."""
    found: dict[str, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = parsed(stat.read_text())
        except OSError:  # It ended.
            continue
        # See proc_pid_stat(5): session, then user and system time in clock ticks.
        if int(fields[3]) == session:
            found[name] = found.get(name, 0) + (int(fields[11]) + int(fields[12])) / TICKS
    return found


def parsed(stat: str) -> tuple[str, list[str]]:
    """A process's name, which may hold anything, and the fields behind it."""
    head, _, tail = stat.rpartition(")")
    return head.partition("(")[2], tail.split()


def spread(milliseconds: list[float]) -> dict[str, float]:
    """Their median and 95th percentile."""
    ordered = sorted(milliseconds)
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(len(ordered) * 0.95)], 2),
    }


if __name__ == "__main__":
    main()
