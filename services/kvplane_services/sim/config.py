"""What a simulated engine is told at its start; plain data, no defaults of the environment."""

from dataclasses import dataclass, field

from kvplane_services.engine.model import Role


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What the engine is: its memory and limits, in blocks and tokens."""

    blocks: int = 16384
    block_size: int = 16
    max_model_len: int = 131072
    max_running: int = 256
    max_batched_tokens: int = 2048
    prefix_caching: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """How long things take.

    The defaults are those of a Qwen3-32B shape on an H200: 12,000 tokens prefill in 1.6 s and
    transfer in about 0.44 s with 16-token blocks, nearly all of it for posting descriptors.

    Attributes:
        prefill_tokens_per_s: Prompt tokens computed per second.
        decode_ms_per_token: One decode step, however many requests it serves.
        transfer_ms: Fixed part of a transfer.
        transfer_us_per_descriptor: For posting one descriptor.
        descriptors_per_block: Layers times regions per layer.
        transfer_tokens_per_s: Tokens whose KV the link carries per second.

    """

    prefill_tokens_per_s: float = 7500.0
    decode_ms_per_token: float = 20.0
    transfer_ms: float = 2.0
    transfer_us_per_descriptor: float = 4.4
    descriptors_per_block: int = 128
    transfer_tokens_per_s: float = 1_000_000.0

    def step(self, *, prefill_tokens: int, decodes: bool) -> float:
        """Seconds for one engine step."""
        seconds = prefill_tokens / self.prefill_tokens_per_s
        return seconds + (self.decode_ms_per_token / 1e3 if decodes else 0.0)

    def transfer(self, *, tokens: int, blocks: int) -> float:
        """Seconds for reading blocks of another engine."""
        descriptors = blocks * self.descriptors_per_block
        return (
            self.transfer_ms / 1e3
            + descriptors * self.transfer_us_per_descriptor / 1e6
            + tokens / self.transfer_tokens_per_s
        )


@dataclass(frozen=True, slots=True)
class ConnectorRules:
    """How its KV connector behaves.

    Attributes:
        stock: vLLM's own NixlConnector instead of kvplane's: no proofs, a read consumes, a fixed
            TTL, failed reads fail the request, and the plane hears nothing.
        retention_ttl: Seconds that a decode engine keeps a retention until its lease is granted.
        stock_ttl: The same for turns without a session, and for all turns under the stock
            connector: vLLM's `decoder_kv_blocks_ttl`.
        staged_ttl: Seconds that a prefill engine keeps blocks: vLLM's `kv_lease_duration`.
        expiry_margin: Seconds before a handle's expiry in which no read is begun.
        end_margin: Seconds before a handle's expiry in which a read that ends counts as failed.
            Not so under the stock connector, which uses whatever arrived.

    """

    stock: bool = False
    retention_ttl: float = 30.0
    stock_ttl: float = 480.0
    staged_ttl: float = 30.0
    expiry_margin: float = 5.0
    end_margin: float = 1.0


@dataclass(frozen=True, slots=True)
class SimEngineConfig:
    """Everything.

    Attributes:
        engine_id: Its name at the plane; empty for `sim-{role}-{port}`.
        role: What it serves.
        http: Where the OpenAI-compatible server listens; port 0 takes a free one.
        side_channel: Where other engines read blocks; port 0 takes a free one.
        plane: Addresses of the plane's gRPC servers, separated by commas; empty for none.
        advertise: Base URL under which gateways reach it; empty for `http`.
        labels: For operators.
        faults: Faults to start with.

    """

    role: Role
    engine_id: str = ""
    model: str = "kvplane-tiny"
    http: str = "127.0.0.1:8100"
    side_channel: str = "127.0.0.1:0"
    plane: str = ""
    advertise: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    shape: EngineShape = EngineShape()
    speed: EngineSpeed = EngineSpeed()
    connector: ConnectorRules = ConnectorRules()
