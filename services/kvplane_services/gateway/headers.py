"""Which headers cross the gateway, in both directions."""

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict, CIMultiDictProxy

# Meant for the next hop only (RFC 9110, section 7.6.1), or made anew for it.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "content-encoding",
        "expect",
    }
)

# Ours to say, or nobody's business behind the gateway. The routing headers are those of vLLM
# (X-data-parallel-rank) and of the llm-d sidecar (x-prefiller-*, x-data-parallel-*, x-encoder-*).
_NOT_TO_ENGINES = _HOP_BY_HOP | {
    "content-type",
    "accept-encoding",
    "cookie",
    "x-request-id",
    "traceparent",
    "tracestate",
}
_ROUTING_PREFIXES = ("x-kvplane-", "x-data-parallel-", "x-prefill", "x-decode", "x-encoder-")

_NOT_TO_CLIENTS = _HOP_BY_HOP | {"date", "server", "x-request-id"}


def to_engine(
    client: CIMultiDictProxy[str],
    *,
    request_id: str,
    data_parallel_rank: int | None,
    trace: Mapping[str, str],
    without: Iterable[str] = (),
) -> CIMultiDict[str]:
    """The headers of a leg.

    Args:
        client: The headers that the client sent.
        request_id: Names the leg at the engine.
        data_parallel_rank: The rank to ask for, if the endpoint serves several.
        trace: Trace context of the leg.
        without: Further headers to leave out, in lower case.

    """
    dropped = _NOT_TO_ENGINES.union(without)
    # What Connection names is meant for this hop as well.
    dropped |= {name.strip().lower() for name in client.get("Connection", "").split(",")}
    headers = CIMultiDict(
        (name, value)
        for name, value in client.items()
        if (lower := name.lower()) not in dropped and not lower.startswith(_ROUTING_PREFIXES)
    )
    headers["Content-Type"] = "application/json"
    # Answers are passed on as they are, so they must not come compressed for us alone.
    headers["Accept-Encoding"] = "identity"
    headers["X-Request-Id"] = request_id
    if data_parallel_rank is not None:
        headers["X-data-parallel-rank"] = str(data_parallel_rank)
    headers.update(trace)
    return headers


def to_client(engine: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers of an engine's answer that the client gets."""
    return CIMultiDict(
        (name, value)
        for name, value in engine.items()
        if (lower := name.lower()) not in _NOT_TO_CLIENTS and not lower.startswith("x-kvplane-")
    )
