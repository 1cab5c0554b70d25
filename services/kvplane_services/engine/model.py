"""What an engine is. Pure data; see engine.proto for the meaning of each field."""

import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Role(enum.Enum):
    """What an engine serves."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        """Whether engines of this role run prefill legs."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """Whether engines of this role run decode legs."""
        return self is not Role.PREFILL


class EngineState(enum.Enum):
    """The lifecycle of an engine."""

    ACTIVE = "active"
    DRAINING = "draining"
    LOST = "lost"


class ConnectorKind(enum.Enum):
    """Which KV connector an engine runs."""

    KVPLANE = "kvplane"
    STOCK = "stock"


@dataclass(frozen=True, slots=True)
class NixlAddress:
    """Where an engine's NIXL side channel listens; `engine_id` is vLLM's, new per process."""

    host: str
    port: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Shape of an engine's KV cache: `block_size` tokens a block, `total_blocks` in all."""

    block_size: int
    total_blocks: int
    dtype: str = ""
    tensor_parallel_size: int = 1
    compatibility_hash: str = ""


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """Which software an engine runs."""

    connector: ConnectorKind
    connector_version: str = ""
    vllm_version: str = ""
    nixl_version: str = ""
    nixl_connector_version: int = 0
    validated_reads: bool = False


@dataclass(frozen=True, slots=True)
class FixedRetention:
    """That an engine with the stock connector keeps turns, each for `ttl` seconds or one read.

    `trust_history` if its blocks may be read without a proof of their tokens.
    """

    ttl: float
    trust_history: bool = False


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load as an engine reports it. Blocks are KV blocks; shared ones count once."""

    running_requests: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    retained_blocks: int = 0
    retentions: int = 0


@dataclass(frozen=True, slots=True)
class Engine:
    """One vLLM engine (one data-parallel rank) as registered.

    `engine_id` is the last part of the resource name `engines/{engine}`. `drain_requested` stays
    when the engine is lost, so that it drains on when it comes back.
    `expire_time` is known at the engine's home only; in the store it has none.
    """

    engine_id: str
    role: Role
    endpoint: str
    models: tuple[str, ...]
    build: EngineBuild
    epoch: int = 0
    state: EngineState = EngineState.ACTIVE
    nixl: NixlAddress | None = None
    layout: KvLayout | None = None
    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    load: EngineLoad = EngineLoad()
    create_time: dt.datetime | None = None
    expire_time: dt.datetime | None = None
    drain_requested: bool = False
    fixed_retention: FixedRetention | None = None
    # Part of its KV blocks that leases may take; None: as the plane has it.
    retention_budget: float | None = None

    @property
    def name(self) -> str:
        """Resource name."""
        return f"engines/{self.engine_id}"


@dataclass(frozen=True, slots=True)
class Home:
    """Which replica of the plane an engine's heartbeats come to: it alone decides on its leases.

    `anchor` is what the engine's keys in the store hang on, and `anchor_ttl` its seconds;
    `engine_ttl` is how long the engine's registration lasts without a heartbeat.
    """

    replica: str
    anchor: str
    anchor_ttl: float
    engine_ttl: float
