from types import SimpleNamespace

import pytest

from kvplane_connector.nixl_backends import choice_of_backends, require_backends
from kvplane_connector.settings import SettingsError


class NotFoundError(Exception):
    """As NIXL's binding raises it."""


def test_a_backend_without_a_provider_is_named_with_what_it_needs() -> None:
    """LIBFABRIC on a machine without a provider says to install one, or to choose UCX."""
    with (
        pytest.raises(SettingsError, match=r"LIBFABRIC needs libfabric .*EFA.*UCX is the default"),
        choice_of_backends(["UCX", "LIBFABRIC"]),
    ):
        raise NotFoundError("NIXL_ERR_NOT_FOUND")


def test_other_failures_pass_as_they_are() -> None:
    """What has nothing to do with backends is not blamed on them."""
    with pytest.raises(RuntimeError, match="out of memory"), choice_of_backends(["UCX"]):
        raise RuntimeError("out of memory")


def test_a_backend_that_nixl_left_out_is_named() -> None:
    """NIXL goes on without a backend that it has no plug-in for; the connector does not."""
    with pytest.raises(SettingsError, match="no plug-in for the backend LIBFABRIC"):
        require_backends(["LIBFABRIC"], SimpleNamespace(backends={}))


@pytest.mark.parametrize("backends", [["UCX"], ["LIBFABRIC"], ["UCX", "LIBFABRIC"]])
def test_what_nixl_has_is_taken(backends: list[str]) -> None:
    """Either backend, or both."""
    with choice_of_backends(backends):
        require_backends(backends, SimpleNamespace(backends=dict.fromkeys(backends)))
