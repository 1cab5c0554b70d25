"""Throughput of a decode engine with our connector, beside one with vLLM's own, under one load.

Real vLLM engines on the tiny model, one alive at a time and in turns. Each takes the same turns,
many at once, and retains them all. NIXL's progress thread polls without a pause with both, as it
does with vLLM's own, so that what differs is the connector. Printed are tokens per second, and the
CPU time of the thread that steps for each 1,000 tokens, which says the same on a machine that is
not quiet. Linux only.

    PYTHONPATH=clients/python:connector:services \
        .venv/bin/python bench/decode_throughput.py [--rounds 2] [--json FILE]
"""

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_services.local.engines import (
    LocalEngine,
    make_model,
    prefill_and_decode,
    running_engines,
)
from kvplane_services.local.vllm_command import EngineOptions

MODEL = "kvplane-tiny"
ROOT = Path(__file__).parents[1]
IMPORT_PATHS = tuple(ROOT / part for part in ("clients/python", "connector", "services"))
TICKS = os.sysconf("SC_CLK_TCK")
AT_ONCE, TOKENS, BLOCKS = 16, 64, 1600
# Both forward and back, so that a machine that slows down favours neither.
ORDER = ("stock", "kvplane", "kvplane", "stock")


def main() -> None:
    """Prints a line per run and a summary; writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1, help="of stock, ours, ours, stock")
    parser.add_argument("--turns", type=int, default=400, help="of each engine")
    parser.add_argument("--parts", type=int, default=8, help="of a run, each measured by itself")
    parser.add_argument("--python", default=str(ROOT / ".venv-vllm/bin/python"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measured(arguments))
    parts = {
        kind: [part for one in found if one["engine"] == kind for part in one["parts"]]
        for kind in ("stock", "kvplane")
    }
    summary = {
        kind: {
            what: spread([part[what] for part in of_kind])
            for what in ("tokens_per_second", "cpu_ms_per_1000_tokens")
        }
        for kind, of_kind in parts.items()
    }
    ratios = {
        what: round(summary["kvplane"][what]["median"] / summary["stock"][what]["median"], 4)
        for what in summary["stock"]
    }
    print(json.dumps({"summary": summary, "kvplane_to_stock": ratios}, indent=1))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"summary": summary, "kvplane_to_stock": ratios, "runs": found})
        )


async def measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One entry per engine that was alive."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = Path(arguments.python)
        await make_model(engine_python=python, folder=folder / "model", import_paths=IMPORT_PATHS)
        found: list[dict[str, Any]] = []
        for kind in ORDER * arguments.rounds:
            async with running_engines(
                engine_options(kind, folder / "model"),
                engine_python=python,
                log_dir=folder / "logs",
                import_paths=IMPORT_PATHS,
            ) as (engine,):
                parts = await of_engine(engine, arguments)
            found.append({"engine": kind, "parts": parts})
            print(kind, *(part["tokens_per_second"] for part in parts), flush=True)
        return found


def engine_options(kind: str, model: Path) -> EngineOptions:
    """A decode engine of a kind that holds what it retains to the end."""
    _, decode = prefill_and_decode(model_dir=model)
    decode = dataclasses.replace(decode, blocks=BLOCKS)
    if kind == "stock":
        return dataclasses.replace(decode, connector="stock")
    return dataclasses.replace(decode, settings={"lease_ttl": 600, "progress_delay_us": 0})


async def of_engine(engine: LocalEngine, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Tokens per second and CPU time, by part."""
    limit = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(engine.url, timeout=limit) as http:
        await turns(http, 0, AT_ONCE)
        thread = stepping_thread(engine.process.pid)
        found: list[dict[str, float]] = []
        count = arguments.turns // arguments.parts
        for part in range(arguments.parts):
            used, start = cpu_seconds(thread), time.perf_counter()
            await turns(http, AT_ONCE + part * count, count)
            took, used = time.perf_counter() - start, cpu_seconds(thread) - used
            tokens = count * TOKENS
            found.append(
                {
                    "tokens_per_second": round(tokens / took, 1),
                    "cpu_ms_per_1000_tokens": round(used * 1e6 / tokens, 2),
                }
            )
    return found


async def turns(http: aiohttp.ClientSession, first: int, count: int) -> None:
    """So many turns of sessions of their own, `AT_ONCE` at a time."""
    numbers = iter(range(first, first + count))

    async def one_after_another() -> None:
        for number in numbers:
            mark = TurnMark("bench", MODEL, "", f"s{number}").encode()
            body = {
                "model": MODEL,
                "prompt": f"session {number} ".ljust(100, "."),
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "temperature": 0,
                "kv_transfer_params": {**LOCAL_ONLY, KEY: mark},
            }
            async with http.post("/v1/completions", json=body) as answer:
                usage = (await answer.json())["usage"]
                if usage["completion_tokens"] != TOKENS:
                    raise RuntimeError(f"{usage['completion_tokens']} tokens came, not {TOKENS}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(one_after_another())


def stepping_thread(session: int) -> Path:
    """Where the kernel says what the engine core's main thread used; it has the process's id."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = parsed(stat.read_text())
        except OSError:  # It ended.
            continue
        if int(fields[3]) == session and "EngineCor" in name:
            return stat.parent / "task" / stat.parent.name / "stat"
    raise RuntimeError("there is no process of an engine core")


def cpu_seconds(thread: Path) -> float:
    """Seconds of CPU that a thread has used."""
    _, fields = parsed(thread.read_text())
    return (int(fields[11]) + int(fields[12])) / TICKS


def parsed(stat: str) -> tuple[str, list[str]]:
    """A process's name, which may hold anything, and the fields behind it."""
    head, _, tail = stat.rpartition(")")
    return head.partition("(")[2], tail.split()


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, 2), "quartile_1": round(low, 2), "quartile_3": round(high, 2)}


if __name__ == "__main__":
    main()
