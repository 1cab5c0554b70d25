"""The one module that knows vLLM's versions.

vLLM 0.26 is the first whose handles carry an expiry, in the owner's clock, and whose
side channel tells that clock. Without them a read of blocks that were given away
cannot be noticed, so older ones are refused.
"""

import re

OLDEST = (0, 26)


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


def reaps_in_order(worker_class: type) -> bool:
    """Whether the worker looks at expiries from the front and stops at the first live one.

    vLLM up to 0.30 does: a renewed retention in front then hides an expired one behind it
    unless the deadlines are kept in order.
    """
    return not hasattr(worker_class, "_reap_expired_send_leases")
