"""`kvplane sim-engine`: one simulated engine."""

from importlib.metadata import version

from kvplane_services.clock import Clock
from kvplane_services.engine.model import Role
from kvplane_services.main.process import background, say, until_stopped
from kvplane_services.settings import SimEngineSettings
from kvplane_services.settings_sim import SimSection
from kvplane_services.sim.config import (
    ConnectorRules,
    EngineShape,
    EngineSpeed,
    SimEngineConfig,
)
from kvplane_services.sim.engine import SimEngine
from kvplane_services.sim.faults import FaultSet, parse_option


async def run_sim_engine(settings: SimEngineSettings, *, clock: Clock) -> None:
    """Runs until a signal asks to stop; then takes its registration back.

    Raises:
        InvalidRequest: The settings do not fit together.
        OSError: An address is taken.
        FencedError: Another engine registered under the same name.

    """
    section = settings.sim
    engine = SimEngine(
        config=config_of(section),
        version=version("kvplane"),
        clock=clock,
        faults=FaultSet(parse_option(text) for text in section.faults),
    )
    async with until_stopped(clock=clock) as stop, engine as serving, background(engine.run()):
        say(f"{serving.engine_id} ({section.role}) ready on {serving.endpoint}")
        await stop.due.wait()


def config_of(section: SimSection) -> SimEngineConfig:
    """What the settings ask for."""
    return SimEngineConfig(
        role=Role(section.role),
        engine_id=section.engine_id,
        model=section.model,
        http=section.http,
        side_channel=section.side_channel,
        plane=section.plane,
        advertise=section.advertise,
        labels=section.labels,
        shape=EngineShape(
            blocks=section.blocks,
            block_size=section.block_size,
            max_model_len=section.max_model_len,
            max_running=section.max_running,
            max_batched_tokens=section.max_batched_tokens,
            prefix_caching=section.prefix_caching,
            seed=section.seed,
        ),
        speed=EngineSpeed(
            prefill_tokens_per_s=section.prefill_tokens_per_s,
            decode_ms_per_token=section.decode_ms_per_token,
            transfer_ms=section.transfer_ms,
            transfer_us_per_descriptor=section.transfer_us_per_descriptor,
            descriptors_per_block=section.descriptors_per_block,
            transfer_tokens_per_s=section.transfer_tokens_per_s,
        ),
        connector=ConnectorRules(
            stock=section.stock,
            retention_ttl=section.retention_ttl,
            staged_ttl=section.staged_ttl,
        ),
    )
