"""The sections of the settings: what each part can be told, with units and bounds.

Sections are shared by the processes that have the part. Defaults are those of the parts
themselves; a test compares them.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from kvplane.client.addresses import normalize_targets
from kvplane_services.errors import InvalidRequest
from kvplane_services.listen import ListenAddress


def _listen_address(text: str) -> str:
    try:
        return str(ListenAddress.parse(text))
    except InvalidRequest as error:
        raise ValueError(error.message) from error


# `host:port` to listen on; port 0 takes a free one.
Listen = Annotated[str, AfterValidator(_listen_address)]
# `host:port` of another process; several, separated by commas, where it has replicas.
Dial = Annotated[str, AfterValidator(normalize_targets)]


class Section(BaseModel):
    """A table of the settings file. Refuses keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class GrpcSection(Section):
    """The gRPC server of a process."""

    address: Listen = Field(
        default="127.0.0.1:7000",
        description="Address to listen on, host:port; port 0 takes a free one. Anything but a "
        "loopback address is open to whoever reaches it.",
    )
    tls_cert: Path | None = Field(
        default=None, description="PEM file with the server's certificate chain."
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the certificate's private key."
    )
    stop_grace: float = Field(
        default=10.0,
        ge=0,
        description="Seconds that running calls get to finish when the process stops.",
    )


class PeersSection(Section):
    """Where a process finds the others, when they do not all run in one.

    An address of replicas is all of theirs, separated by commas, or a name that has them all.
    """

    leases: Dial = Field(
        default="127.0.0.1:7000", description="gRPC addresses of `kvplane leases`."
    )
    router: Dial = Field(
        default="127.0.0.1:7002", description="gRPC addresses of `kvplane router`."
    )
    tls_ca: Path | None = Field(
        default=None, description="PEM file with the authorities to trust; turns encryption on."
    )
    timeout: float = Field(
        default=5.0, gt=0, description="Seconds to wait for the answer of another process."
    )


class StopSection(Section):
    """How a process stops."""

    delay: float = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="Seconds that a process goes on serving after SIGTERM while /readyz and gRPC's "
        "health service say that it stops; longer than balancers in front take to notice. SIGINT, "
        "from a terminal, skips it.",
    )


class LogSection(Section):
    """Logs, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    format: Literal["text", "json"] = Field(
        default="text", description="One line of text or of JSON."
    )


class RegistrationSection(Section):
    """How engines register."""

    ttl: float = Field(
        default=15.0,
        gt=0,
        le=3600,
        description="Seconds without a heartbeat until an engine is lost.",
    )
    min_ttl: float = Field(default=3.0, gt=0, le=3600, description="Shortest TTL, seconds.")
    max_ttl: float = Field(default=300.0, gt=0, le=86_400, description="Longest TTL, seconds.")
    heartbeat_interval: float = Field(
        default=1.0, gt=0, le=300, description="Seconds between an engine's heartbeats."
    )
    remember_lost: float = Field(
        default=600.0, gt=0, description="Seconds that a lost engine is still listed."
    )
    load_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Seconds between two writes of changed loads; 0 writes each at once.",
    )


class LeasesSection(Section):
    """How long retentions are kept."""

    ttl: float = Field(
        default=30.0, ge=6, le=3600, description="Seconds that a retention stays after a renewal."
    )
    grace: float = Field(
        default=5.0,
        ge=0,
        le=60,
        description="Seconds by which the plane calls a lease expired later.",
    )
    claim_ttl: float = Field(
        default=30.0,
        gt=0,
        le=600,
        description="Seconds that a claim lasts whose holder names no length.",
    )
    idle_keep: float = Field(
        default=900.0,
        ge=0,
        description="Seconds that an idle session's lease is renewed after its use, at most.",
    )
    final_keep: float = Field(
        default=120.0,
        ge=0,
        description="The same, in seconds, of a session whose turn was said to be the last.",
    )
    retention_budget: float = Field(
        default=0.35,
        ge=0,
        le=1,
        description="Part of an engine's KV blocks that leases which are renewed may take, claimed "
        "ones included, where the engine names none.",
    )


class SessionsSection(Section):
    """How long sessions are remembered, and kept when their client asks."""

    ttl: float = Field(
        default=3600.0,
        gt=0,
        description="Seconds without a use or a lease until a session is forgotten, where its "
        "creator names no time.",
    )
    min_ttl: float = Field(default=60.0, gt=0, description="Shortest such time, seconds.")
    max_ttl: float = Field(default=604_800.0, gt=0, description="Longest such time, seconds.")
    keep_for: float = Field(
        default=120.0, gt=0, description="Seconds that a touch keeps a session that names none."
    )
    max_keep_for: float = Field(
        default=3600.0, gt=0, description="Longest that a touch or a hint keeps a session, seconds."
    )
    max_sessions: int = Field(
        default=500_000,
        ge=1,
        description="Sessions remembered; beyond it the one that has been idle longest is "
        "forgotten. Each takes about 1 kB of every registry's memory.",
    )


class RouterSection(Section):
    """How turns are decided."""

    min_pull_tokens: int = Field(
        default=64, ge=1, description="Retentions with fewer tokens are not worth a transfer."
    )
    retention_wait: float = Field(
        default=0.025,
        ge=0,
        le=1,
        description="Seconds that a decision waits at most for the report of the session's last "
        "turn.",
    )
    decision_ttl: float = Field(
        default=21_600.0,
        ge=60,
        description="Seconds after which a turn that nobody reports is no longer counted; longer "
        "than any stream may last.",
    )
    max_in_flight: int = Field(
        default=100_000, ge=1, description="Turns in flight at once; more are refused as saturated."
    )
    claim_ttl: float = Field(
        default=30.0,
        ge=3,
        le=600,
        description="Seconds that the claim of a turn in flight lasts; repeated every third of it.",
    )
    longest_claim: float = Field(
        default=60.0,
        ge=3,
        le=3600,
        description="Seconds from the decision after which a turn no longer claims its lease; "
        "about twice the leases' ttl.",
    )
    restart_grace: float = Field(
        default=15.0,
        ge=0,
        le=300,
        description="Seconds that engines and leases are kept which a restarted lease manager "
        "has not heard of yet, and that a router which has just started takes missing engines "
        "for late ones.",
    )


class ProberSection(Section):
    """How engines that are named by hand are watched."""

    interval: float = Field(default=2.0, gt=0, le=60, description="Seconds between two probes.")
    timeout: float = Field(default=2.0, gt=0, le=60, description="Seconds that a probe may take.")
    failures: int = Field(
        default=3, ge=1, le=100, description="Failed probes in a row after which an engine is lost."
    )


class GatewaySection(Section):
    """The OpenAI-compatible gateway."""

    http: Listen = Field(
        default="127.0.0.1:8000",
        description="Address to listen on, host:port; port 0 takes a free one.",
    )
    max_body_bytes: int = Field(
        default=64 * 1024 * 1024, gt=0, description="Largest request body, bytes."
    )
    body_idle_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Longest silence of a client in the middle of its request body, seconds.",
    )
    connect_timeout: float = Field(
        default=5.0, gt=0, description="Seconds to open a connection to an engine."
    )
    prefill_timeout: float = Field(
        default=120.0,
        gt=0,
        description="Seconds from sending a prefill leg to the end of its answer.",
    )
    pull_timeout: float = Field(
        default=30.0,
        gt=0,
        description="The same of a prefill leg that reads what another engine holds, which may be "
        "frozen; then the turn is recomputed, on other engines where there are some.",
    )
    stream_idle_timeout: float = Field(
        default=300.0, gt=0, description="Longest silence of a streaming answer, seconds."
    )
    answer_timeout: float = Field(
        default=1800.0,
        gt=0,
        description="Longest silence of an answer that does not stream, seconds.",
    )
    shutdown_grace: float = Field(
        default=30.0,
        ge=0,
        description="Seconds that running turns get to finish when the process stops.",
    )
    tenant_header: str = Field(
        default="",
        description="Request header with the tenant's name, set by an authenticating proxy in "
        "front; set it only if clients cannot reach the gateway past that proxy.",
    )
    tenant_secret: SecretStr = Field(
        default=SecretStr(""),
        max_length=64,
        description="Key of the digest that turns API keys into tenant names; the same on all "
        "gateways.",
    )
    response_headers: bool = Field(
        default=False, description="Whether answers carry x-kvplane-* headers about the decision."
    )
    allow_strategy_header: bool = Field(
        default=False, description="Whether the request header x-kvplane-strategy is obeyed."
    )
    prefill_keeps: frozenset[Literal["tool_choice", "response_format"]] = Field(
        default=frozenset(),
        description="Constraint fields that prefill legs keep, for models whose chat template "
        "prints them into the prompt.",
    )
    otlp_endpoint: str = Field(
        default="",
        description="Where finished spans go, by OTLP over HTTP, as in "
        "http://127.0.0.1:4318/v1/traces; empty records none. Needs "
        "opentelemetry-exporter-otlp-proto-http.",
    )
