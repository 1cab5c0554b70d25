"""One plane and one pair of engines of each kind, for all tests of this package and no longer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvplane.client.sync import SyncPlane
from tests.contract.engine_conformance.bench import Bench
from tests.support.plane_process import PlaneProcess
from tests.support.sim_engines import SimPair, start_sim
from tests.support.vllm_engines import ServedPair, started_pair

# Nothing is kept for being recent: what outlives its TTL does so because somebody claims it.
_SETTINGS = """
[leases]
ttl = 10
idle_keep = 0
[registration]
heartbeat_interval = 0.25
"""
LEASE_TTL = 10.0
# A read begins until 5 s before the end: time enough for a leg on a busy machine.
STAGED_TTL = 12
# As many tokens as the real pair has.
_SIM_BLOCKS = 3200


@dataclass(frozen=True, slots=True)
class Started:
    """Engines, and what is known of them."""

    pair: ServedPair
    block_size: int
    blocks: int


@pytest.fixture(
    scope="package",
    params=[
        "sim",
        # The first test waits for the engines.
        pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(300)]),
    ],
)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="package")
def bench(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp(f"conformance-{kind}")
    plane = PlaneProcess(folder, _SETTINGS)
    plane.start()
    starter = _simulated if kind == "sim" else _real
    try:
        for engines in starter(plane.target, folder):
            with SyncPlane(plane.target) as client:
                yield Bench(
                    pair=engines.pair,
                    plane=client,
                    block_size=engines.block_size,
                    blocks=engines.blocks,
                    lease_ttl=LEASE_TTL,
                    staged_ttl=STAGED_TTL,
                )
    finally:
        plane.stop()


def _simulated(target: str, folder: Path) -> Iterator[Started]:
    # As the real pair is set up: the prefill engine keeps no cache of its own.
    options = (
        *("--blocks", str(_SIM_BLOCKS), "--max-model-len", "4096"),
        *("--staged-ttl", str(STAGED_TTL)),
    )
    prefill = start_sim(
        "prefill", plane=target, folder=folder, options=(*options, "--no-prefix-caching")
    )
    decode = start_sim("decode", plane=target, folder=folder, options=options)
    try:
        yield Started(SimPair(prefill, decode), block_size=16, blocks=_SIM_BLOCKS)
    finally:
        for engine in (prefill, decode):
            engine.program.stop()


def _real(target: str, folder: Path) -> Iterator[Started]:
    with started_pair(
        target,
        folder,
        extra_config={"kv_lease_duration": STAGED_TTL},
        # The simulated engine has no generation words: it fences reads by expiries.
        settings={"validate_reads": False},
    ) as pair:
        yield Started(pair, block_size=128, blocks=pair.decode.options.blocks - 1)
