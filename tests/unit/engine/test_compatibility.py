from dataclasses import replace

import pytest

from kvplane_services.engine.compatibility import check_build, check_partners
from kvplane_services.engine.model import (
    ConnectorKind,
    EngineBuild,
    EngineState,
    KvLayout,
    Role,
)
from kvplane_services.errors import EngineIncompatible
from tests.support.state_values import engine_of, stock_engine

LAYOUT = KvLayout(
    block_size=16,
    total_blocks=1000,
    dtype="float32",
    tensor_parallel_size=1,
    compatibility_hash="h",
)


def build(**changes: object) -> EngineBuild:
    values: dict[str, object] = {
        "connector": ConnectorKind.KVPLANE,
        "connector_version": "0.1.0",
        "vllm_version": "0.32.0",
    }
    return EngineBuild(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "version", ["0.26.0", "0.32.0", "0.33.1rc1", "0.27.1.dev12+gabc123", "0.32.0+cpu", "1.0"]
)
def test_vllm_that_is_new_enough(version: str) -> None:
    """vLLM 0.26 and every later version is taken, builds of one's own included."""
    check_build(engine_of(build=build(vllm_version=version)), plane_version="0.1.0")


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ("0.25.9", "needs 0.26 or later: upgrade vLLM"),
        ("0.9.2", "needs 0.26 or later"),
        ("0.1.dev1+g123", "needs 0.26 or later"),
        ("", "does not say which vLLM version"),
        ("  ", "does not say which vLLM version"),
        ("main", "not a version: install a release"),
    ],
)
def test_vllm_that_is_too_old_or_unknown(version: str, hint: str) -> None:
    """Other versions are refused, and the message says what to do."""
    with pytest.raises(EngineIncompatible, match=hint):
        check_build(engine_of(build=build(vllm_version=version)), plane_version="0.1.0")


@pytest.mark.parametrize(
    ("connector", "plane"), [("0.1.0", "0.1.7"), ("0.1.3rc1", "0.1.0"), ("1.2.0", "1.2.9")]
)
def test_connectors_of_the_same_minor(connector: str, plane: str) -> None:
    """A connector and a plane of one minor version work together."""
    check_build(engine_of(build=build(connector_version=connector)), plane_version=plane)


@pytest.mark.parametrize(
    ("connector", "hint"),
    [
        ("0.2.0", r"install kvplane 0\.1 on the engine"),
        ("1.1.0", r"install kvplane 0\.1 on the engine"),
        ("", "does not say which connector version"),
        ("newest", "not a version"),
    ],
)
def test_connectors_of_another_minor(connector: str, hint: str) -> None:
    """Other connectors are refused, and the message says what to install."""
    with pytest.raises(EngineIncompatible, match=hint):
        check_build(engine_of(build=build(connector_version=connector)), plane_version="0.1.0")


def test_stock_engines_need_not_tell_versions() -> None:
    """An engine named by hand is taken without versions, but not with one that is too old."""
    check_build(stock_engine(), plane_version="0.1.0")

    old = EngineBuild(connector=ConnectorKind.STOCK, vllm_version="0.21.0")
    with pytest.raises(EngineIncompatible):
        check_build(stock_engine(build=old), plane_version="0.1.0")


@pytest.mark.parametrize(
    ("layout", "difference"),
    [
        (replace(LAYOUT, block_size=128), "block_size is 128 here and 16 there"),
        (replace(LAYOUT, dtype="bfloat16"), "dtype is bfloat16 here and float32 there"),
        (replace(LAYOUT, tensor_parallel_size=2), "tensor_parallel_size is 2 here and 1 there"),
        (replace(LAYOUT, compatibility_hash="g"), "compatibility_hash is g here and h there"),
    ],
)
def test_partners_with_another_layout(layout: KvLayout, difference: str) -> None:
    """An engine whose blocks its partners could not use is refused, naming the difference."""
    prefill = engine_of("p0", role=Role.PREFILL, layout=LAYOUT)

    with pytest.raises(EngineIncompatible) as refused:
        check_partners(engine_of("d0", layout=layout), [prefill])

    assert difference in refused.value.message
    assert "engines/p0" in refused.value.message
    assert refused.value.metadata == {"engine": "engines/d0", "partner": "engines/p0"}


def test_all_differences_are_named_at_once() -> None:
    """Whoever has to change something learns all of it from one message."""
    prefill = engine_of("p0", role=Role.PREFILL, layout=LAYOUT)
    other = replace(LAYOUT, block_size=128, dtype="bfloat16")

    with pytest.raises(EngineIncompatible, match=r"block_size .*; dtype "):
        check_partners(engine_of("d0", layout=other), [prefill])


def test_partners_with_another_vllm() -> None:
    """Prefill and decode must be the same vLLM build."""
    prefill = engine_of("p0", role=Role.PREFILL, build=build(vllm_version="0.31.0"))

    with pytest.raises(EngineIncompatible, match=r"vLLM is 0\.32\.0 here and 0\.31\.0 there"):
        check_partners(engine_of("d0"), [prefill])


def test_partners_that_fit() -> None:
    """Only the number of blocks may differ, and one tensor-parallel rank is one."""
    prefill = engine_of(
        "p0",
        role=Role.PREFILL,
        layout=replace(LAYOUT, total_blocks=7, tensor_parallel_size=0),
    )

    check_partners(engine_of("d0", layout=LAYOUT), [prefill])


@pytest.mark.parametrize(
    "other",
    [
        engine_of("d1", layout=replace(LAYOUT, block_size=128)),
        engine_of("p0", role=Role.PREFILL, models=("n",), layout=replace(LAYOUT, block_size=128)),
        engine_of(
            "p0",
            role=Role.PREFILL,
            state=EngineState.LOST,
            layout=replace(LAYOUT, block_size=128),
        ),
        engine_of("d0", role=Role.PREFILL, layout=replace(LAYOUT, block_size=128)),
        stock_engine("p0", role=Role.PREFILL),
    ],
    ids=["same role", "other model", "lost", "itself", "tells no layout"],
)
def test_engines_that_are_no_partners_may_differ(other: object) -> None:
    """Engines that never exchange blocks, or tell nothing to compare, are not compared."""
    check_partners(engine_of("d0", layout=LAYOUT), [other])  # type: ignore[list-item]


def test_engines_that_do_both_pair_with_everybody() -> None:
    """An engine of role BOTH has partners of every role."""
    both = engine_of("b0", role=Role.BOTH, layout=replace(LAYOUT, block_size=128))

    for role in Role:
        with pytest.raises(EngineIncompatible):
            check_partners(both, [engine_of("x0", role=role, layout=LAYOUT)])
