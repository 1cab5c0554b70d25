"""What the gateway can be told. Pure data; settings.py reads it from where operators write it."""

from dataclasses import dataclass

from kvplane_services.errors import InvalidRequest

_MIB = 1024 * 1024
# As much as blake2b takes.
_MOST_SECRET_BYTES = 64


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Limits and switches of one gateway. Durations in seconds.

    Attributes:
        max_body_bytes: Largest request body; larger ones are refused with 413.
        body_idle_timeout: Longest silence of a client in the middle of its request body.
        connect_timeout: To open a connection to an engine.
        prefill_timeout: From sending a prefill leg to the end of its answer. An engine that
            is frozen never answers; this ends the wait.
        pull_timeout: The same of a prefill leg that reads what another engine holds, where it
            is less. vLLM waits for a frozen owner for ever; after this the turn is recomputed.
        stream_idle_timeout: Longest silence of a streaming decode leg, the wait for its
            first byte included.
        answer_timeout: Longest silence of a decode leg that does not stream; engines send
            nothing before such an answer is complete.
        shutdown_grace: How long running turns may go on once no new ones are taken.
        tenant_header: Request header that an authenticating proxy in front sets to the
            tenant's name. Empty: tenants are told apart by their API keys. Set it only if
            clients cannot reach the gateway past that proxy.
        tenant_secret: Key of the digest that turns an API key into a tenant's name. All
            gateways of a deployment need the same one.
        response_headers: Whether answers carry `x-kvplane-*` headers about the decision.
        allow_strategy_header: Whether the request header `x-kvplane-strategy` is obeyed.
        prefill_keeps: Constraint fields (`tool_choice`, `response_format`) that prefill legs
            keep, for models whose chat template prints them into the prompt. vLLM 0.32 does
            that for Kimi K3 alone.
        otlp_endpoint: Where finished spans go, by OTLP over HTTP. Empty: none are recorded.

    """

    max_body_bytes: int = 64 * _MIB
    body_idle_timeout: float = 60.0
    connect_timeout: float = 5.0
    prefill_timeout: float = 120.0
    pull_timeout: float = 30.0
    stream_idle_timeout: float = 300.0
    answer_timeout: float = 1800.0
    shutdown_grace: float = 30.0
    tenant_header: str = ""
    tenant_secret: str = ""
    response_headers: bool = False
    allow_strategy_header: bool = False
    prefill_keeps: frozenset[str] = frozenset()
    otlp_endpoint: str = ""

    def __post_init__(self) -> None:
        """Refuses values that cannot work.

        Raises:
            InvalidRequest: A value is out of bounds.

        """
        for name in (
            "max_body_bytes",
            "body_idle_timeout",
            "connect_timeout",
            "prefill_timeout",
            "pull_timeout",
            "stream_idle_timeout",
            "answer_timeout",
        ):
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"gateway.{name} must be above 0", field=f"gateway.{name}")
        if self.shutdown_grace < 0:
            raise InvalidRequest(
                "gateway.shutdown_grace must not be negative", field="gateway.shutdown_grace"
            )
        if len(self.tenant_secret.encode()) > _MOST_SECRET_BYTES:
            raise InvalidRequest(
                f"gateway.tenant_secret is longer than {_MOST_SECRET_BYTES} bytes",
                field="gateway.tenant_secret",
            )
        unknown = self.prefill_keeps - {"tool_choice", "response_format"}
        if unknown:
            raise InvalidRequest(
                f"gateway.prefill_keeps knows tool_choice and response_format, not {min(unknown)}",
                field="gateway.prefill_keeps",
            )
