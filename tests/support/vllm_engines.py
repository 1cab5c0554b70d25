"""A pair of real vLLM engines for tests, and a hand that leads turns through them.

Engines are started with the packages of this checkout. They take most of a small machine: a
fixture that starts some has at most the scope of a package, so that one pair lives at a time.
"""

import asyncio
import dataclasses
import json
import os
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families

from kvplane.transfer_params import KEY, LOCAL_ONLY, PREFILL_ONLY, TurnMark
from kvplane_services.local.engines import (
    EnginePair,
    LocalEngine,
    make_model,
    prefill_and_decode,
    running_engines,
)
from kvplane_services.local.vllm_command import EngineOptions

ROOT = Path(__file__).parents[2]
IMPORT_PATHS = (ROOT / "clients" / "python", ROOT / "connector", ROOT / "services")
MODEL = "kvplane-tiny"

Messages = list[dict[str, str]]


class Served(Protocol):
    """An engine that can be asked, real or not."""

    @property
    def url(self) -> str: ...


class ServedPair(Protocol):
    """Two that work together."""

    @property
    def prefill(self) -> Served: ...

    @property
    def decode(self) -> Served: ...


def engine_python() -> Path:
    """The python that has vLLM: `make engine-env`'s, or what KVPLANE_ENGINE_PYTHON names."""
    found = Path(os.environ.get("KVPLANE_ENGINE_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
    if not found.exists():
        raise FileNotFoundError(
            f"{found} does not exist: run `make engine-env`, or name a python that has vLLM in "
            "KVPLANE_ENGINE_PYTHON"
        )
    return found


@contextmanager
def started(
    options: Sequence[EngineOptions], log_dir: Path, *, import_paths: Sequence[Path] = IMPORT_PATHS
) -> Iterator[tuple[LocalEngine, ...]]:
    """Engines that run until the block ends; no event loop is left running meanwhile."""
    manager: AbstractAsyncContextManager[tuple[LocalEngine, ...]] = running_engines(
        *options, engine_python=engine_python(), log_dir=log_dir, import_paths=import_paths
    )
    with asyncio.Runner() as runner:
        engines = runner.run(manager.__aenter__())
        try:
            yield engines
        finally:
            runner.run(manager.__aexit__(None, None, None))


@contextmanager
def started_pair(
    plane: str,
    folder: Path,
    *,
    extra_config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[EnginePair]:
    """A prefill and a decode engine on the tiny model.

    Args:
        plane: Address of their plane.
        folder: Of the model and the logs.
        extra_config: Of vLLM's own connector.
        settings: Of kvplane's.

    """
    options = [
        dataclasses.replace(one, extra_config=extra_config or {}, settings=settings or {})
        for one in prefill_and_decode(model_dir=tiny_model(folder), plane=plane)
    ]
    with started(options, folder / "logs") as (prefill, decode):
        yield EnginePair(prefill, decode)


def tiny_model(folder: Path) -> Path:
    """Makes the tiny model in `folder`; returns its own folder there."""
    made = folder / "model"
    with asyncio.Runner() as runner:
        runner.run(
            make_model(engine_python=engine_python(), folder=made, import_paths=IMPORT_PATHS)
        )
    return made


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its text, its tokens, the prompt's length, and the bytes it came in.

    `logprobs` are those of its tokens, if the request asked for them.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    kv_transfer_params: dict[str, Any] | None = None
    raw: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def ask(
    engine: Served,
    messages: Messages,
    *,
    params: Mapping[str, Any] | None = None,
    max_tokens: int = 24,
    stream: bool = False,
    seconds: float = 30,
    **body: Any,
) -> Reply:
    """One chat completion, greedy."""
    body |= {
        "model": MODEL,
        "messages": messages,
        "temperature": 0,
        "max_tokens": max_tokens,
        "return_token_ids": True,
        "stream": stream,
    }
    if params is not None:
        body["kv_transfer_params"] = dict(params)
    if stream:
        body["stream_options"] = {"include_usage": True}
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{engine.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - loopback
        return _streamed(answer) if stream else _whole(json.load(answer))


def recomputed(pair: ServedPair, messages: Messages, *, max_tokens: int = 24) -> Reply:
    """What the prefill engine alone answers, reading from nobody and caching nothing."""
    return ask(pair.prefill, messages, max_tokens=max_tokens)


def turn(
    pair: ServedPair,
    session_id: str,
    messages: Messages,
    *,
    handle: Mapping[str, Any] | None = None,
    max_tokens: int = 24,
    decision_id: str = "",
) -> Reply:
    """A turn through both engines, its answer streamed; reads the handle's blocks if given one."""
    first = ask(pair.prefill, messages, params=handle or PREFILL_ONLY, max_tokens=1)
    mark = TurnMark("", MODEL, "", session_id, decision_id, b"\x01\x02")
    params = {**(first.kv_transfer_params or LOCAL_ONLY), KEY: mark.encode()}
    return ask(pair.decode, messages, params=params, max_tokens=max_tokens, stream=True)


def local_turn(
    pair: ServedPair, session_id: str, messages: Messages, *, max_tokens: int = 24
) -> Reply:
    """A turn that the decode engine serves by itself, its answer streamed."""
    params = {**LOCAL_ONLY, KEY: TurnMark("", MODEL, "", session_id).encode()}
    return ask(pair.decode, messages, params=params, max_tokens=max_tokens, stream=True)


def metric(engine: Served, name: str, **labels: str) -> float:
    """The sum of vLLM's samples of this name with these labels; 0 if there are none."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=10) as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def transferred(engine: Served) -> int:
    """Prompt tokens that an engine read from others, as vLLM counts."""
    return _by_source(engine, "external_kv_transfer")


def computed(engine: Served) -> int:
    """Prompt tokens that an engine computed, as vLLM counts."""
    return _by_source(engine, "local_compute")


def _by_source(engine: Served, source: str) -> int:
    return int(metric(engine, "vllm:prompt_tokens_by_source_total", source=source))


def _whole(answer: dict[str, Any]) -> Reply:
    choice = answer["choices"][0]
    return Reply(
        text=choice["message"]["content"] or "",
        token_ids=choice["token_ids"],
        prompt_tokens=answer["usage"]["prompt_tokens"],
        kv_transfer_params=answer.get("kv_transfer_params"),
        logprobs=[one["logprob"] for one in (choice.get("logprobs") or {}).get("content") or ()],
    )


def _streamed(answer: Any) -> Reply:
    raw = [line.decode().strip() for line in answer]
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in raw
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return Reply(
        text="".join(choice["delta"].get("content") or "" for choice in choices),
        token_ids=[token for choice in choices for token in choice.get("token_ids") or ()],
        prompt_tokens=chunks[-1]["usage"]["prompt_tokens"],
        raw=raw,
    )
