"""Settings of the simulated engine."""

from dataclasses import replace

import pytest

from kvplane_services.engine.model import Role
from kvplane_services.main.sim_engine import config_of
from kvplane_services.settings_sim import SimSection
from kvplane_services.sim.config import ConnectorRules, SimEngineConfig


def test_defaults_are_those_of_the_engine() -> None:
    """A setting that is not given leaves the engine as it is by itself."""
    assert config_of(SimSection()) == SimEngineConfig(role=Role.BOTH)


def test_what_is_set_reaches_the_engine() -> None:
    """Every part of the configuration can be set."""
    section = SimSection(
        role="decode", blocks=7, decode_ms_per_token=1, stock=True, labels={"a": "b"}
    )
    plain = SimEngineConfig(role=Role.DECODE)

    config = config_of(section)

    assert config == replace(
        plain,
        labels={"a": "b"},
        shape=replace(plain.shape, blocks=7),
        speed=replace(plain.speed, decode_ms_per_token=1),
        connector=ConnectorRules(stock=True),
    )


def test_the_default_speed_is_what_was_measured() -> None:
    """12,000 tokens of a Qwen3-32B shape: 1.6 s to compute, about 0.44 s to transfer."""
    speed = SimEngineConfig(role=Role.BOTH).speed

    assert abs(speed.step(prefill_tokens=12_000, decodes=False) - 1.6) < 0.01
    assert abs(speed.transfer(tokens=12_000, blocks=750) - 0.437) < 0.01


def test_plane_may_be_several_replicas() -> None:
    """An engine registers at whichever replica of its plane it reaches."""
    assert config_of(SimSection(plane="a:1, b:2")).plane == "a:1,b:2"
    with pytest.raises(ValueError, match="is not an address"):
        SimSection(plane="a:1,b")
