"""The etcd clients that there are, for tests that hold for each of them."""

from collections.abc import Callable

from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.etcd3_backend import Etcd3Backend
from kvplane_services.adapters.etcd.grpc_backend import GrpcBackend
from kvplane_services.clock import SystemClock

MakeBackend = Callable[[EtcdConfig], EtcdBackend]


def grpc_backend(config: EtcdConfig) -> EtcdBackend:
    """The one over the project's own stubs."""
    return GrpcBackend(config, clock=SystemClock())


def etcd3_backend(config: EtcdConfig) -> EtcdBackend:
    """The one over the package etcd3."""
    return Etcd3Backend(config, clock=SystemClock())


BACKENDS: dict[str, MakeBackend] = {"grpc": grpc_backend, "etcd3": etcd3_backend}
# The package etcd3 opens one channel to one host, and has no way to go to another.
BACKENDS_OF_SEVERAL_ENDPOINTS: dict[str, MakeBackend] = {"grpc": grpc_backend}
