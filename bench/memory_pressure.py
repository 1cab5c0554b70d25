"""How long requests wait at a decode engine that is full of retained turns: vLLM's own and ours.

Run with the project's python; needs the engines' environment (`make engine-env`):

    PYTHONPATH=clients/python:connector:services .venv/bin/python bench/memory_pressure.py \
        --json FILE

For each connector a prefill and a decode engine are started on the tiny model, and the same load
is sent to them: first turns of new conversations at a steady pace, each of which leaves its
blocks retained, and at last one prompt of half of the decode engine's cache. Both connectors
keep what is retained for `--ttl` seconds: vLLM's default is 480 s, which a benchmark would have
to sit out. There is no plane: what happens under pressure is the engine's own doing.

Measured per request: seconds from asking the decode engine until the first token, and the time that
vLLM says its requests spent in the queue.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from prometheus_client.parser import text_string_to_metric_families

from kvplane.transfer_params import KEY, PREFILL_ONLY, TurnMark
from kvplane_services.local.engines import (
    EnginePair,
    make_model,
    prefill_and_decode,
    running_engines,
)
from kvplane_services.local.vllm_command import BLOCK_SIZE, EngineOptions

ROOT = Path(__file__).parents[1]
IMPORT_PATHS = tuple(ROOT / one for one in ("clients/python", "connector", "services"))
MODEL = "kvplane-tiny"
SENTENCE = "Which change broke the replication test of the block service? The log says this: "
# Of the tiny model's tokenizer, about.
TOKENS_PER_SENTENCE = 82
# A wait that a user notices.
LONG = 1.0

Connector = Literal["stock", "kvplane"]


def main() -> None:
    """Prints a table, and writes all figures as JSON."""
    parser = argparse.ArgumentParser(description="How long requests wait")
    parser.add_argument("--requests", type=int, default=18, help="conversations")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between them")
    parser.add_argument("--blocks", type=int, default=61, help="KV blocks of the decode engine")
    parser.add_argument("--ttl", type=float, default=60.0, help="seconds that turns are retained")
    parser.add_argument(
        "--connectors", nargs="+", choices=("stock", "kvplane"), default=["stock", "kvplane"]
    )
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    load = {key: value for key, value in vars(arguments).items() if key != "json"}
    connectors: dict[str, Any] = {}
    print(f"{'':10}{'median':>9}{'p95':>9}{'max':>9}{'over 1 s':>10}{'queue mean':>11}{'half':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for connector in arguments.connectors:
            found = asyncio.run(measured(connector, arguments, Path(folder)))
            connectors[connector] = found
            first = found["first_token_seconds"]
            print(
                f"{connector:10}{first['median']:9.3f}{first['p95']:9.3f}{first['max']:9.3f}"
                f"{found['waited_over_1_s']:10}{found['queue_seconds_mean']:11.3f}"
                f"{found['half_of_the_cache_seconds']:9.3f}",
                flush=True,
            )
    if arguments.json:
        figures = {"load": load, "connectors": connectors}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


async def measured(
    connector: Connector, arguments: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Starts a pair with this connector, sends the load, and returns the figures."""
    python = ROOT / ".venv-vllm" / "bin" / "python"
    await make_model(engine_python=python, folder=folder / "model", import_paths=IMPORT_PATHS)
    options = [
        amended(one, connector, arguments)
        for one in prefill_and_decode(model_dir=folder / "model", model_name=MODEL)
    ]
    async with running_engines(
        *options,
        engine_python=python,
        log_dir=folder / f"logs-{connector}",
        import_paths=IMPORT_PATHS,
    ) as (prefill, decode):
        return await asyncio.to_thread(sent, EnginePair(prefill, decode), arguments)


def amended(
    options: EngineOptions, connector: Connector, arguments: argparse.Namespace
) -> EngineOptions:
    """One engine's options: a small cache for decode, and the same TTL whatever the connector."""
    if options.role == "prefill":
        return replace(options, connector=connector)
    stock = connector == "stock"
    return replace(
        options,
        connector=connector,
        blocks=arguments.blocks,
        max_tokens=(arguments.blocks - 1) * BLOCK_SIZE,
        extra_config={"decoder_kv_blocks_ttl": arguments.ttl} if stock else {},
        settings={} if stock else {"lease_ttl": arguments.ttl},
    )


def sent(pair: EnginePair, arguments: argparse.Namespace) -> dict[str, Any]:
    """Sends the load; returns the figures."""
    turn(pair, "warm-up", 1)
    queued, placed = queue(pair)
    with ThreadPoolExecutor(arguments.requests + 1) as threads:
        waits = []
        for number in range(arguments.requests):
            waits.append(threads.submit(turn, pair, f"conversation {number}", 8))
            time.sleep(arguments.interval)
        full = usage(pair)
        half = threads.submit(turn, pair, "half", half_of_the_cache(arguments.blocks))
        seconds = sorted(one.result() for one in waits)
        half_seconds = half.result()
    queued_after, placed_after = queue(pair)
    return {
        "first_token_seconds": {
            "median": statistics.median(seconds),
            "p95": seconds[int(len(seconds) * 0.95)],
            "max": seconds[-1],
            "all": seconds,
        },
        "waited_over_1_s": sum(one > LONG for one in seconds),
        "half_of_the_cache_seconds": half_seconds,
        "queue_seconds_mean": (queued_after - queued) / (placed_after - placed),
        "cache_usage_when_the_load_had_come": full,
        "preemptions": metric(pair.decode.url, "vllm:num_preemptions_total"),
    }


def half_of_the_cache(blocks: int) -> int:
    """How often to say the sentence for a prompt of about half of the cache."""
    return (blocks - 1) // 2 * BLOCK_SIZE // TOKENS_PER_SENTENCE - 1


def turn(pair: EnginePair, session: str, sentences: int) -> float:
    """A first turn through both engines; returns the decode engine's seconds to the first token."""
    messages = [{"role": "user", "content": f"{session}: {SENTENCE * sentences}"}]
    with posted(pair.prefill.url, messages, PREFILL_ONLY, max_tokens=1, stream=False) as answer:
        handle: Mapping[str, Any] = json.load(answer)["kv_transfer_params"]
    params = {**handle, KEY: TurnMark("", MODEL, "", session).encode()}
    started = time.monotonic()
    with posted(pair.decode.url, messages, params, max_tokens=16, stream=True) as answer:
        chunks = (line for line in answer if line.startswith(b"data: {"))
        next(one for one in chunks if _has_token(one))
        first = time.monotonic() - started
        for _ in chunks:
            pass
    return first


def _has_token(line: bytes) -> bool:
    choices: Sequence[Mapping[str, Any]] = json.loads(line.removeprefix(b"data: "))["choices"]
    return any(choice.get("token_ids") for choice in choices)


def posted(
    url: str,
    messages: Sequence[Mapping[str, str]],
    params: Mapping[str, Any],
    *,
    max_tokens: int,
    stream: bool,
) -> Any:
    """A chat completion."""
    body = {
        "model": MODEL,
        "messages": messages,
        "temperature": 0,
        "max_tokens": max_tokens,
        "return_token_ids": True,
        "stream": stream,
        "kv_transfer_params": dict(params),
    }
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=900)  # noqa: S310 - loopback


def queue(pair: EnginePair) -> tuple[float, float]:
    """Seconds that requests of the decode engine spent in its queue, and how many left it."""
    name = "vllm:request_queue_time_seconds"
    return metric(pair.decode.url, f"{name}_sum"), metric(pair.decode.url, f"{name}_count")


def usage(pair: EnginePair) -> float:
    """The used part of the decode engine's cache."""
    return metric(pair.decode.url, "vllm:kv_cache_usage_perc")


def metric(url: str, name: str) -> float:
    """The sum of an engine's samples of this name."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )


if __name__ == "__main__":
    main()
