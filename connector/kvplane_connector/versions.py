"""The one module that knows vLLM's versions.

vLLM's handles carry an expiry in the owner's clock, and its side channel tells that clock, since
0.26. Since 0.30 a read that is declined or refused is told to the scheduler by the request's name;
before, a model with several kinds of cache took it for a good one. Without either, blocks that
were given away would be used unnoticed, so older ones are refused.
"""

import re

OLDEST = (0, 30)

# What vLLM asks about a read before it and after it; see worker.py.
_FENCE = ("_is_turn2_read_expired", "_pop_done_transfers", "_nixl_handshake")


class UnsupportedVllmError(RuntimeError):
    """This vLLM cannot be used; the message says which can."""


def require_supported(version: str) -> None:
    """Returns if vLLM `version` is supported.

    Raises:
        UnsupportedVllmError: It is older than the oldest supported one, or says nothing.

    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise UnsupportedVllmError(
            f"KvplaneConnector needs vLLM {OLDEST[0]}.{OLDEST[1]} or later; this is {version!r}. "
            "Upgrade vLLM, or run this engine with NixlConnector and name it to the plane by hand"
        )


def require_fence(worker_class: type, version: str) -> None:
    """Returns if the worker of vLLM `version` still asks what the fence around reads answers.

    Raises:
        UnsupportedVllmError: It does not, and would read what may have been given away.

    """
    missing = [name for name in _FENCE if not hasattr(worker_class, name)]
    if missing:
        raise UnsupportedVllmError(
            f"KvplaneConnector cannot fence the reads of vLLM {version}, whose worker has no "
            f"{', '.join(missing)}. Use a newer kvplane, or an older vLLM from "
            f"{OLDEST[0]}.{OLDEST[1]} on"
        )


def reaps_in_order(worker_class: type) -> bool:
    """Whether the worker looks at expiries from the front and stops at the first live one.

    vLLM up to 0.30 does: a renewed retention in front then hides an expired one behind it
    unless the deadlines are kept in order.
    """
    return not hasattr(worker_class, "_reap_expired_send_leases")
