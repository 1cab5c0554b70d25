"""What a simulated engine can be told, with units and bounds."""

from typing import Literal

from pydantic import Field

from kvplane_services.settings_sections import Dial, Listen, Section


class SimSection(Section):
    """A simulated engine."""

    role: Literal["prefill", "decode", "both"] = Field(
        default="both", description="What it serves."
    )
    http: Listen = Field(
        default="127.0.0.1:8100",
        description="Address of its OpenAI-compatible server; port 0 takes a free one.",
    )
    side_channel: Listen = Field(
        default="127.0.0.1:0",
        description="Address where other simulated engines read its blocks; port 0 takes a free "
        "one. There is no authentication.",
    )
    plane: Dial | Literal[""] = Field(
        default="",
        description="gRPC address of the plane to register at; empty for none. Several, separated "
        "by commas, for a plane of several replicas.",
    )
    advertise: str = Field(
        default="", description="Base URL that gateways reach it under; empty for that of http."
    )
    engine_id: str = Field(default="", description="Name at the plane; empty for sim-ROLE-PORT.")
    model: str = Field(default="kvplane-tiny", description="Served model name.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels at the plane.")
    stock: bool = Field(
        default=False, description="Behave as vLLM's own NixlConnector, and do not register."
    )
    blocks: int = Field(default=16384, ge=2, description="KV blocks.")
    block_size: int = Field(default=16, ge=1, le=1024, description="Tokens per KV block.")
    max_model_len: int = Field(default=131_072, ge=2, description="Longest prompt plus answer.")
    max_running: int = Field(default=256, ge=1, description="Requests that run at once.")
    max_batched_tokens: int = Field(default=2048, ge=1, description="Tokens of one step.")
    prefix_caching: bool = Field(default=True, description="Find blocks again by their tokens.")
    seed: int = Field(default=0, ge=0, description="Engines with one seed run the same model.")
    prefill_tokens_per_s: float = Field(
        default=7500.0, gt=0, description="Prompt tokens computed per second."
    )
    decode_ms_per_token: float = Field(
        default=20.0, ge=0, description="Milliseconds of a decode step."
    )
    transfer_ms: float = Field(
        default=2.0, ge=0, description="Fixed part of a transfer, milliseconds."
    )
    transfer_us_per_descriptor: float = Field(
        default=4.4, ge=0, description="Microseconds to post one descriptor."
    )
    descriptors_per_block: int = Field(
        default=128, ge=1, description="Descriptors per KV block: layers times regions."
    )
    transfer_tokens_per_s: float = Field(
        default=1_000_000.0, gt=0, description="Tokens whose KV the link carries per second."
    )
    retention_ttl: float = Field(
        default=30.0, gt=0, description="Seconds that it retains without word from a plane."
    )
    staged_ttl: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that prefill keeps blocks for the decode leg: vLLM's "
        "`kv_lease_duration`. Reads begin until 5 s before.",
    )
    faults: tuple[str, ...] = Field(
        default=(), description="Faults from the start, each as KIND:NAME=NUMBER,..."
    )
