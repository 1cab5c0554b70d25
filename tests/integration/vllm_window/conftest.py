"""A pair whose model has two kinds of KV cache: of all tokens, and of a window's."""

import dataclasses
from collections.abc import Iterator

import pytest

from kvplane_services.local.engines import EnginePair, prefill_and_decode
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import started, tiny_model
from tests.support.window_model import add_windows


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration/vllm_window" in str(item.path):
            item.add_marker(pytest.mark.vllm)
            # The first test waits for the engines.
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="package")
def plane() -> Iterator[RecordingPlane]:
    plane = RecordingPlane(lease_ttl=30.0)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture(scope="package")
def pair(plane: RecordingPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    folder = tmp_path_factory.mktemp("window")
    model = tiny_model(folder)
    add_windows(model)
    # Explicit, so that vLLM refuses to start instead of keeping everything of every layer.
    options = [
        dataclasses.replace(one, arguments=("--no-disable-hybrid-kv-cache-manager",))
        for one in prefill_and_decode(model_dir=model, plane=plane.target)
    ]
    with started(options, folder / "logs") as (prefill, decode):
        yield EnginePair(prefill, decode)
