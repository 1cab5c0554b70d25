"""Whether an engine can work with this plane and with the engines beside it. Pure.

Engines that exchange KV blocks must agree in layout and in vLLM build: a mismatch shows only as
failed or wrong reads, turn after turn, so it is refused once, when the engine registers.
"""

from collections.abc import Iterable, Iterator

from packaging.version import InvalidVersion, Version

from kvplane_services.engine.model import ConnectorKind, Engine, EngineState, KvLayout
from kvplane_services.errors import EngineIncompatible

# The first vLLM whose handles carry an expiry and a clock, without which reads cannot be fenced.
OLDEST_VLLM = (0, 26)


def check_build(engine: Engine, *, plane_version: str) -> None:
    """Checks an engine's own software. Engines with the stock connector may leave versions out.

    Args:
        engine: The engine that asks to be registered.
        plane_version: Version of the kvplane package that this plane runs.

    Raises:
        EngineIncompatible: Too old, unknown, or of another minor version; says what to change.

    """
    build = engine.build
    required = build.connector is ConnectorKind.KVPLANE
    if required or build.vllm_version:
        vllm = _version(engine, "vLLM", build.vllm_version)
        if vllm.release[:2] < OLDEST_VLLM:
            oldest = ".".join(map(str, OLDEST_VLLM))
            raise _incompatible(
                engine,
                f"runs vLLM {build.vllm_version}; kvplane needs {oldest} or later: "
                "upgrade vLLM on the engine",
            )
    if required:
        connector = _version(engine, "connector", build.connector_version)
        plane = Version(plane_version)
        if connector.release[:2] != plane.release[:2]:
            raise _incompatible(
                engine,
                f"runs kvplane connector {build.connector_version}, this plane is "
                f"{plane_version}: install kvplane {plane.major}.{plane.minor} on the engine",
            )


def check_partners(engine: Engine, others: Iterable[Engine]) -> None:
    """Checks an engine against those that it would exchange blocks with.

    Engines that are lost, that share no model, or that never pair by role do not count.

    Raises:
        EngineIncompatible: Names the partner, what differs, and what to change.

    """
    for other in others:
        if not _are_partners(engine, other):
            continue
        found = [
            f"{name} is {own} here and {others} there"
            for name, own, others in differences(engine, other)
        ]
        if found:
            raise _incompatible(
                engine,
                f"cannot exchange KV blocks with {other.name}, which serves the same model: "
                f"{'; '.join(found)}. Start both with the same vLLM build and KV cache "
                f"settings, or deregister {other.name} first",
                partner=other.name,
            )


def differences(engine: Engine, partner: Engine) -> Iterator[tuple[str, object, object]]:
    """Where two engines differ that cannot exchange blocks then: what, the first's, the other's.

    A property that either side does not tell is not compared.
    """
    for name, own, others in _compared(engine, partner):
        if own and others and own != others:
            yield name, own, others


def _are_partners(engine: Engine, other: Engine) -> bool:
    if other.engine_id == engine.engine_id or other.state is EngineState.LOST:
        return False
    if not set(engine.models) & set(other.models):
        return False
    reads = engine.role.prefills and other.role.decodes
    return reads or (engine.role.decodes and other.role.prefills)


def _compared(engine: Engine, other: Engine) -> Iterable[tuple[str, object, object]]:
    yield "vLLM", engine.build.vllm_version, other.build.vllm_version
    yield (
        "the NIXL connector protocol",
        engine.build.nixl_connector_version,
        other.build.nixl_connector_version,
    )
    if engine.layout and other.layout:
        own, others = engine.layout, other.layout
        yield "block_size", own.block_size, others.block_size
        yield "dtype", own.dtype, others.dtype
        yield "tensor_parallel_size", _ranks(own), _ranks(others)
        yield "compatibility_hash", own.compatibility_hash, others.compatibility_hash


def _ranks(layout: KvLayout) -> int:
    return max(1, layout.tensor_parallel_size)


def _version(engine: Engine, what: str, text: str) -> Version:
    if not text.strip():
        raise _incompatible(engine, f"does not say which {what} version it runs")
    try:
        return Version(text)
    except InvalidVersion:
        raise _incompatible(
            engine, f"runs {what} {text!r}, which is not a version: install a release"
        ) from None


def _incompatible(engine: Engine, what: str, **metadata: str) -> EngineIncompatible:
    return EngineIncompatible(f"{engine.name} {what}", engine=engine.name, **metadata)
