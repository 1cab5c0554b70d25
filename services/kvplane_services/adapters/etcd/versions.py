"""Which etcds can be spoken to."""

import re

from kvplane_services.errors import StoreRefused

# The oldest one: it answers requests for progress on watches.
OLDEST_VERSION = (3, 4)


def check_version(version: str, *, target: str) -> None:
    """Checks the version that the etcd at `target` says it has. Raises StoreRefused."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_VERSION:
        oldest = ".".join(str(part) for part in OLDEST_VERSION)
        raise StoreRefused(
            f"etcd at {target} has version {version or 'unknown'}, and kvplane needs {oldest} or "
            "later: upgrade it"
        )
