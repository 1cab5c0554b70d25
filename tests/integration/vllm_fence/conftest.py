"""A pair with little memory, whose reads can be held up, and a plane that renews nothing."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplane_services.local.engines import EnginePair, prefill_and_decode
from kvplane_services.local.vllm_command import EngineOptions
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import IMPORT_PATHS, ROOT, started, tiny_model

# vLLM's for staged blocks. A read has to begin 5 s before the end of it.
STAGED = 11
# Blocks of 128 tokens, few more than the longest prompt needs; decode keeps finished turns too.
BLOCKS = {"prefill": 20, "decode": 40}
MAX_TOKENS = 2048


@pytest.fixture(scope="package")
def plane() -> Iterator[RecordingPlane]:
    """Retentions end by themselves, and leave the memory to the next test."""
    plane = RecordingPlane(lease_ttl=10.0)
    plane.renews = lambda _: False
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture(scope="package")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists both engines stand still before they read."""
    return tmp_path_factory.mktemp("held") / "reads"


@pytest.fixture(scope="package")
def pair(
    plane: RecordingPlane, held: Path, tmp_path_factory: pytest.TempPathFactory
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
            extra_config={"kv_lease_duration": STAGED, "held_reads": str(held)},
        )

    options = prefill_and_decode(model_dir=tiny_model(folder), plane=plane.target)
    paths = (*IMPORT_PATHS, ROOT / "tests" / "support" / "in_engines")
    with started([amended(one) for one in options], folder / "logs", import_paths=paths) as (p, d):
        yield EnginePair(p, d)
