"""What the etcd client makes of an etcd: `.venv/bin/python bench/etcd_client.py`.

Wants an etcd to play with, without a password, at 127.0.0.1:2379 or at --endpoints:
`.build/etcd/etcd --logger=zap --data-dir "$(mktemp -d)"`. Writes 200-byte values by
compare-and-set, 64 at a time; renews 2,000 etcd leases over one stream; and follows the writes by
a watch. Prints calls a second and the processor time of this process for each, in microseconds.
"""

import argparse
import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvplane_services.adapters.etcd.backend import Compare, DeleteOp, PutOp
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.grpc_backend import GrpcBackend
from kvplane_services.clock import SystemClock

_PREFIX = b"/kvplane-bench/"
_VALUE = b"v" * 200
_BATCH = 100


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _measured(results: dict[str, Any], name: str, calls: int) -> Iterator[None]:
    started, before = time.perf_counter(), _processor_seconds()
    yield
    seconds, busy = time.perf_counter() - started, _processor_seconds() - before
    results[f"{name}_per_s"] = round(calls / seconds)
    results[f"{name}_cpu_us"] = round(busy / calls * 1e6)


async def _each(calls: int, concurrency: int, call: Callable[[int], Awaitable[object]]) -> None:
    """Makes calls, so many at a time."""
    numbers = iter(range(calls))

    async def work() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(work() for _ in range(concurrency)))


async def _writes(backend: GrpcBackend, results: dict[str, Any], calls: int, at_once: int) -> None:
    async def write(number: int) -> None:
        key = b"%sw/%d" % (_PREFIX, number)
        if not (await backend.txn([Compare(key, 0)], [PutOp(key, _VALUE)])).succeeded:
            raise SystemExit(f"somebody else writes under {_PREFIX.decode()}")

    with _measured(results, f"txn_{at_once}_at_once", calls):
        await _each(calls, at_once, write)


async def _reads(backend: GrpcBackend, results: dict[str, Any], calls: int, at_once: int) -> None:
    with _measured(results, f"get_{at_once}_at_once", calls):
        await _each(calls, at_once, lambda number: backend.get(b"%sw/%d" % (_PREFIX, number)))
    started = time.perf_counter()
    found = await backend.range(_PREFIX + b"w/")
    results["range_keys_per_s"] = round(len(found.items) / (time.perf_counter() - started))


async def _renewals(backend: GrpcBackend, results: dict[str, Any], leases: int, calls: int) -> None:
    granted: list[int] = []

    async def grant(_: int) -> None:
        granted.append(await backend.grant(600))

    with _measured(results, "grant_64_at_once", leases):
        await _each(leases, 64, grant)

    async def names() -> AsyncIterator[int]:
        for number in range(calls):
            yield granted[number % leases]

    with _measured(results, "keepalive_one_stream", calls):
        async for lease, seconds in backend.keep_alive(names()):
            if not seconds:
                raise SystemExit(f"etcd lease {lease:x} is gone")
    await _each(leases, 64, lambda number: backend.revoke(granted[number]))


async def _watch(backend: GrpcBackend, results: dict[str, Any], start_revision: int) -> None:
    """Catches up with all writes of this run."""
    expected = len((await backend.range(_PREFIX + b"w/")).items)
    seen = 0
    with _measured(results, "watched_event", expected):
        async for batch in backend.watch(_PREFIX + b"w/", start_revision=start_revision):
            seen += len(batch.events)
            if seen >= expected:
                return


async def _clean(backend: GrpcBackend) -> None:
    keys = [item.key for item in (await backend.range(_PREFIX)).items]
    for first in range(0, len(keys), _BATCH):
        await backend.txn([], [DeleteOp(key) for key in keys[first : first + _BATCH]])


async def _run(endpoints: tuple[str, ...], calls: int) -> dict[str, Any]:
    backend = GrpcBackend(EtcdConfig(endpoints, try_timeout=6), clock=SystemClock())
    results: dict[str, Any] = {}
    try:
        await backend.connect()
        await _clean(backend)
        for at_once, share in ((64, 1), (1, 10)):
            revision = (await backend.get(_PREFIX))[0].revision
            await _writes(backend, results, calls // share, at_once)
            await _reads(backend, results, calls // share, at_once)
            if at_once > 1:
                await _watch(backend, results, revision + 1)
            await _clean(backend)
        await _renewals(backend, results, 2_000, calls)
    finally:
        await backend.close()
    return results


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", default="127.0.0.1:2379", help="host:port,host:port")
    parser.add_argument("--calls", type=int, default=20_000)
    arguments = parser.parse_args()
    endpoints = tuple(arguments.endpoints.split(","))
    print(json.dumps(asyncio.run(_run(endpoints, arguments.calls)), indent=1))


if __name__ == "__main__":
    main()
