"""A pair with little memory, whose reads can be held up, and a plane that renews nothing."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.local.engines import EnginePair, prefill_and_decode
from kvplane_services.local.vllm_command import EngineOptions
from tests.support.interleavings import DECODE_BLOCKS, MAX_TOKENS
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import IMPORT_PATHS, ROOT, started, tiny_model

# vLLM's for staged blocks. A read has to begin 5 s before the end of it.
STAGED = 11
# Blocks of 128 tokens. Prefill keeps the prompts of some legs that do not come.
BLOCKS = {"prefill": 64, "decode": DECODE_BLOCKS}


@pytest.fixture(scope="package")
def plane() -> Iterator[RecordingPlane]:
    """Retentions end by themselves, and leave the memory to the next test."""
    plane = RecordingPlane(lease_ttl=10.0)
    plane.renews = lambda _: False
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture(scope="package")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that say what both engines do with their reads."""
    return tmp_path_factory.mktemp("reads")


@pytest.fixture(scope="package")
def held(reads: Path) -> Path:
    """While this file exists both engines stand still before they read."""
    return reads / "held"


@pytest.fixture(scope="package")
def pair(
    plane: RecordingPlane, reads: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EnginePair]:
    """A pair with little memory, so that what was given away is soon written over."""
    folder = tmp_path_factory.mktemp("small")

    def amended(options: EngineOptions) -> EngineOptions:
        return dataclasses.replace(
            options,
            name=f"small-{options.role}",
            blocks=BLOCKS[options.role],
            max_tokens=MAX_TOKENS,
            connector_module="held_reads",
            extra_config={"kv_lease_duration": STAGED, "held_reads": str(reads)},
        )

    options = prefill_and_decode(model_dir=tiny_model(folder), plane=plane.target)
    paths = (*IMPORT_PATHS, ROOT / "tests" / "support" / "in_engines")
    with started([amended(one) for one in options], folder / "logs", import_paths=paths) as (p, d):
        yield EnginePair(p, d)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture(autouse=True)
def released(plane: RecordingPlane) -> Iterator[None]:
    """Each test leaves the decode engine's memory free."""
    yield
    plane.releases |= dict.fromkeys(plane.retentions, lease_pb2.END_REASON_RELEASED)
    plane.wait(lambda: not plane.retentions, seconds=20, what="the release of all")
