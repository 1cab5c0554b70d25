"""The etcd clients that there are, for tests that hold for each of them."""

from collections.abc import Callable

from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.grpc_backend import GrpcBackend
from kvplane_services.clock import SystemClock

MakeBackend = Callable[[EtcdConfig], EtcdBackend]


def grpc_backend(config: EtcdConfig) -> EtcdBackend:
    """The one over the project's own stubs."""
    return GrpcBackend(config, clock=SystemClock())


BACKENDS: dict[str, MakeBackend] = {"grpc": grpc_backend}
