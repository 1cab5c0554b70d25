"""What a decision costs in process: `.venv/bin/python bench/decide.py`.

Decides one turn after another, each of another session, among four prefill and four decode
engines, and reports it at once. Handles are as long as those of 12,000 tokens in 16-token
blocks. Prints the median and the 99th percentile in microseconds.
"""

import argparse
import asyncio
import base64
import gc
import itertools
import json
import statistics
import sys

from kvplane_services.clock import SystemClock
from kvplane_services.engine.model import ConnectorKind, Engine, EngineBuild, KvLayout, Role
from kvplane_services.lease.model import Handle, Lease
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.decider import Decider
from kvplane_services.router.inflight import InFlight
from kvplane_services.router.model import (
    Decision,
    KeptTurn,
    LegKind,
    LegReport,
    RouteOutcome,
    Subject,
)
from kvplane_services.router.view import RouterView
from kvplane_services.session.model import SessionKey
from kvplane_services.store.model import Synced, Upserted

_ENGINES_PER_ROLE = 4
_TOKENS = 12_000
_MODEL = "qwen3-32b"


class _NoClaims:
    def claim(self, lease: str, fencing_token: int, *, turn: str) -> None:
        """See `router.decider.Claims`."""

    def drop(self, lease: str, *, turn: str) -> None:
        """See `router.decider.Claims`."""


class _NoneUnreported:
    def begin(self, decision: Decision, *, message_digest: bytes) -> None:
        """See `router.decider.Unreported`."""

    def end(self, decision_id: str, kept: KeptTurn | None) -> bool:
        """See `router.decider.Unreported`."""
        del decision_id, kept
        return False

    async def consume(self, lease: Lease) -> str:
        """See `router.decider.Unreported`."""
        raise AssertionError(f"{lease.name} is no lease of a stock engine")


def _engines() -> list[Engine]:
    return [
        Engine(
            engine_id=f"{role.value}-{number}",
            role=role,
            endpoint=f"http://10.0.0.{number}:8000",
            models=(_MODEL,),
            build=EngineBuild(connector=ConnectorKind.KVPLANE, vllm_version="0.32.0"),
            epoch=1,
            layout=KvLayout(block_size=16, total_blocks=16_139),
        )
        for role in (Role.PREFILL, Role.DECODE)
        for number in range(_ENGINES_PER_ROLE)
    ]


def _handle() -> Handle:
    chunks = -(-_TOKENS // 64)
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "5f4c0f0e-1f6a-4d52-8d7c-3f5a0e6f9b10",
        "remote_request_id": "cmpl-1f6a4d52-0-5f4c0f0e",
        "remote_block_ids": [list(range(5000, 5000 + _TOKENS // 16))],
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": _TOKENS,
        "remote_blocks_expiry_time": 123456.789,
        "tp_size": 1,
        "kvplane": {
            "algorithm": "blake2b-128/2",
            "chunk_tokens": 64,
            "tokens": _TOKENS,
            "digests": base64.b64encode(bytes(16 * chunks)).decode(),
            "digest_bytes": 16,
        },
    }
    return Handle(json.dumps(params).encode())


def _key(number: int) -> SessionKey:
    return SessionKey("default", _MODEL, "", f"session-{number}")


def _lease(number: int, handle: Handle) -> Lease:
    return Lease(
        lease_id=f"l{number}",
        session_key=_key(number),
        engine_id=f"decode-{number % _ENGINES_PER_ROLE}",
        engine_epoch=1,
        retention_id=f"r{number}",
        fencing_token=number + 1,
        tokens=_TOKENS,
        blocks=_TOKENS // 16,
        handle=handle,
    )


def _router(*, leases: int) -> Decider:
    clock, config = SystemClock(), RouterConfig()
    view = RouterView(clock=clock, grace=config.restart_grace, memory=config.memory)
    for engine in _engines():
        view.apply_engine(Upserted(engine.engine_id, engine, 1))
    handle = _handle()
    for number in range(leases):
        lease = _lease(number, handle)
        view.apply_lease(Upserted(lease.lease_id, lease, 1))
    view.apply_engine(Synced(1))
    view.apply_lease(Synced(1))
    ids = itertools.count()
    return Decider(
        view=view,
        in_flight=InFlight(limit=config.max_in_flight, retry_after=1.0),
        claims=_NoClaims(),
        unreported=_NoneUnreported(),
        config=config,
        clock=clock,
        new_id=lambda: f"{next(ids):032x}",
    )


async def _measure(turns: int, *, held: bool) -> list[float]:
    clock = SystemClock()
    router = _router(leases=turns if held else 0)
    spans: list[float] = []
    gc.collect()
    gc.freeze()
    for number in range(turns):
        subject = Subject(session_key=_key(number))
        start = clock.now()
        decision = await router.decide(subject)
        spans.append((clock.now() - start) * 1e6)
        await router.report(
            LegReport(
                decision_id=decision.decision_id,
                leg=LegKind.DECODE,
                outcome=RouteOutcome.CANCELLED,
            )
        )
    gc.unfreeze()
    return spans


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=10_000)
    turns = parser.parse_args().turns
    for name, held in (("recompute", False), ("pull", True)):
        spans = asyncio.run(_measure(turns, held=held))
        p99 = statistics.quantiles(spans, n=100)[98]
        sys.stdout.write(
            f"{name:9} {turns} decisions: median {statistics.median(spans):.1f} us, "
            f"p99 {p99:.1f} us\n"
        )


if __name__ == "__main__":
    main()
