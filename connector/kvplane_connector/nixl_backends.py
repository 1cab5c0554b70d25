"""Says what is wrong when NIXL has not got a backend that the operator chose.

NIXL answers NIXL_ERR_NOT_FOUND when a backend's plug-in is there and nothing on the machine that
it could use. A backend without a plug-in it leaves out, with a warning: transfers fail later.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from kvplane_connector.settings import SettingsError

_NOT_FOUND = "NIXL_ERR_NOT_FOUND"
_NEEDS = {
    "LIBFABRIC": "libfabric with a provider for this machine's network, such as EFA's "
    "(`fi_info -l` lists providers)",
}
_OTHERWISE = (
    'Or choose another one with "backends" in kv_connector_extra_config; UCX is the default'
)


@contextmanager
def choice_of_backends(backends: Sequence[str]) -> Generator[None]:
    """Says which backends could not be created, if that is why NIXL's agent cannot be built.

    Raises:
        SettingsError: One of them has nothing on this machine to work with.

    """
    try:
        yield
    except Exception as error:
        # NIXL's errors have no common class, and the name of the code is all that they say.
        if _NOT_FOUND not in str(error):
            raise
        chosen = [one for one in backends if one != "UCX"] or list(backends)
        needs = "; ".join(f"{one} needs {_NEEDS.get(one, 'its provider')}" for one in chosen)
        raise SettingsError(
            f"NIXL cannot create the backends {', '.join(backends)} here ({_NOT_FOUND}): {needs}. "
            f"{_OTHERWISE}"
        ) from error


def require_backends(backends: Sequence[str], nixl: Any) -> None:
    """Returns if NIXL's agent has every one of these backends.

    Raises:
        SettingsError: It left one out, as it does with those whose plug-in is missing.

    """
    has = getattr(nixl, "backends", None)
    if missing := sorted(set(backends) - set(has)) if has is not None else []:
        raise SettingsError(
            f"NIXL has no plug-in for the backend {', '.join(missing)}: install a NIXL that brings "
            f"it, or name its folder in NIXL_PLUGIN_DIR. {_OTHERWISE}"
        )
