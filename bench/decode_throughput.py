"""Throughput of a decode engine with our connector, beside one with vLLM's own, under one load.

Two real vLLM engines on the tiny model. Each takes the same turns, many at once, and retains them
all; they take them in short parts, one engine after the other, and the one whose part it is not is
frozen. NIXL's progress thread polls without a pause with both, as it does with vLLM's own, so that
what differs is the connector. Compared are parts next to each other: tokens per second, and the
CPU time of the thread that steps, which says the same on a machine that is not quiet. Linux only.

    PYTHONPATH=clients/python:connector:services \
        .venv/bin/python bench/decode_throughput.py [--parts 24] [--json FILE]
"""

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

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
# A turn takes a block of 128 tokens, and vLLM's own connector never gives such a one back.
AT_ONCE, TOKENS, BLOCKS = 16, 64, 1800
# Both orders, so that a machine that slows down favours neither.
ORDERS = (("stock", "kvplane"), ("kvplane", "stock"))
WHATS = ("tokens_per_second", "cpu_ms_per_1000_tokens")


def main() -> None:
    """Prints a line per part and a summary; writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", type=int, default=24, help="of each engine")
    parser.add_argument("--turns", type=int, default=48, help="of each part")
    parser.add_argument("--python", default=str(ROOT / ".venv-vllm/bin/python"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if AT_ONCE + arguments.parts * arguments.turns > BLOCKS - AT_ONCE:
        parser.error(f"the engines retain no more than {BLOCKS} turns")
    # Ended from outside, it still thaws what is frozen.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parts = asyncio.run(measured(arguments))
    pairs = list(zip(parts["kvplane"], parts["stock"], strict=True))
    summary = {
        what: {kind: spread([one[what] for one in of_kind]) for kind, of_kind in parts.items()}
        | {"kvplane_to_stock": spread([ours[what] / stock[what] for ours, stock in pairs])}
        for what in WHATS
    }
    print(json.dumps(summary, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": summary, "parts": parts}))


async def measured(arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Parts by engine, in the order in which they were next to each other."""
    python = Path(arguments.python)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        await make_model(engine_python=python, folder=folder / "model", import_paths=IMPORT_PATHS)
        async with running_engines(
            *both(folder / "model"),
            engine_python=python,
            log_dir=folder / "logs",
            import_paths=IMPORT_PATHS,
        ) as engines:
            tried = {kind: Tried(one) for kind, one in zip(ORDERS[0], engines, strict=True)}
            found: dict[str, list[dict[str, float]]] = {kind: [] for kind in tried}
            try:
                for one in tried.values():
                    await one.part(0, AT_ONCE)
                for number in range(arguments.parts):
                    for kind in ORDERS[number % 2]:
                        first = AT_ONCE + number * arguments.turns
                        found[kind].append(await tried[kind].part(first, arguments.turns))
                    print(number, *(found[kind][-1] for kind in found), flush=True)
            finally:
                # Or they could not end.
                for one in tried.values():
                    one.thaw()
        return found


def both(model: Path) -> list[EngineOptions]:
    """Decode engines that hold what they retain to the end."""
    _, stock = prefill_and_decode(model_dir=model)
    _, ours = prefill_and_decode(model_dir=model)
    settings = {"lease_ttl": 600, "progress_delay_us": 0}
    return [
        dataclasses.replace(stock, name="stock", blocks=BLOCKS, connector="stock"),
        dataclasses.replace(ours, name="kvplane", blocks=BLOCKS, settings=settings),
    ]


class Tried:
    """An engine that is frozen but for its parts."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._thread = stepping_thread(engine.process.pid)

    def thaw(self) -> None:
        """Lets all of its processes go on."""
        os.killpg(self._engine.process.pid, signal.SIGCONT)

    async def part(self, first: int, count: int) -> dict[str, float]:
        """So many turns, from a number on."""
        self.thaw()
        limit = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(self._engine.url, timeout=limit) as http:
            used, start = cpu_seconds(self._thread), time.perf_counter()
            await turns(http, first, count)
            took, used = time.perf_counter() - start, cpu_seconds(self._thread) - used
        os.killpg(self._engine.process.pid, signal.SIGSTOP)
        tokens = count * TOKENS
        values = round(tokens / took, 1), round(used * 1e6 / tokens, 2)
        return dict(zip(WHATS, values, strict=True))


async def turns(http: aiohttp.ClientSession, first: int, count: int) -> None:
    """So many turns of sessions of their own, `AT_ONCE` at a time."""
    numbers = iter(range(first, first + count))

    async def one_after_another() -> None:
        for number in numbers:
            mark = TurnMark("bench", MODEL, "", f"s{number}").encode()
            body = {
                "model": MODEL,
                "prompt": f"session {number} ".ljust(40, "."),
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
            return stat.parent / "task" / stat.parent.name / "schedstat"
    raise RuntimeError("there is no process of an engine core")


def cpu_seconds(thread: Path) -> float:
    """Seconds of CPU that a thread has used, which the kernel counts in nanoseconds."""
    return int(thread.read_text().split()[0]) / 1e9


def parsed(stat: str) -> tuple[str, list[str]]:
    """A process's name, which may hold anything, and the fields behind it."""
    head, _, tail = stat.rpartition(")")
    return head.partition("(")[2], tail.split()


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, 4), "quartile_1": round(low, 4), "quartile_3": round(high, 4)}


if __name__ == "__main__":
    main()
