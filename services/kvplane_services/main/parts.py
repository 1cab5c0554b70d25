"""Puts parts together from settings: the lease manager's side, and the router's."""

import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

from pydantic import BaseModel

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc
from kvplane.api.lease.v1 import lease_pb2, lease_pb2_grpc
from kvplane.api.router.v1 import router_pb2, router_pb2_grpc
from kvplane.api.session.v1 import session_pb2, session_pb2_grpc
from kvplane_services.adapters.records import CLAIMS, ENGINES, HOMES, LEASES, MEMBERS, SESSIONS
from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.clock import Clock
from kvplane_services.engine.directory import EngineDirectory
from kvplane_services.engine.homes import EngineHomes
from kvplane_services.engine.model import Engine
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.engine.servicer import EngineServicer
from kvplane_services.errors import InvalidRequest
from kvplane_services.grpc_server import GrpcServer
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.manager import LeaseManager
from kvplane_services.lease.model import Lease
from kvplane_services.lease.ports import FixedLeaseControl, LeaseControl
from kvplane_services.lease.servicer import LeaseServicer
from kvplane_services.router.claims import LeaseClaims
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.decider import Decider
from kvplane_services.router.explain import Explainer
from kvplane_services.router.fixed_retentions import FixedRetentions
from kvplane_services.router.inflight import InFlight
from kvplane_services.router.servicer import RouterServicer
from kvplane_services.router.view import RouterView
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.registry import SessionRegistry
from kvplane_services.session.servicer import SessionServicer
from kvplane_services.session.shares import ROLE
from kvplane_services.settings import LeasesSettings
from kvplane_services.settings_sections import RouterSection, SessionsSection
from kvplane_services.store.members import Member, Members
from kvplane_services.store.ports import Feed, Store

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class LeasesPart:
    """Engines and leases."""

    homes: EngineHomes
    directory: EngineDirectory
    manager: LeaseManager

    def add_to(self, server: GrpcServer) -> None:
        """Adds EngineService and LeaseService."""
        server.add(
            engine_pb2_grpc.add_EngineServiceServicer_to_server,
            EngineServicer(directory=self.directory, manager=self.manager),
            _service(engine_pb2, "EngineService"),
        )
        server.add(
            lease_pb2_grpc.add_LeaseServiceServicer_to_server,
            LeaseServicer(manager=self.manager),
            _service(lease_pb2, "LeaseService"),
        )

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What runs in the background."""
        return self.homes.run(), self.directory.run(), self.manager.run()


@dataclass(frozen=True, slots=True)
class RouterPart:
    """Decisions from a view that follows feeds."""

    decider: Decider
    explainer: Explainer
    view: RouterView
    claims: LeaseClaims
    unreported: FixedRetentions
    engines: Feed[Engine]
    leases: Feed[Lease]

    def add_to(self, server: GrpcServer) -> None:
        """Adds RouterService."""
        server.add(
            router_pb2_grpc.add_RouterServiceServicer_to_server,
            RouterServicer(router=self.decider, explainer=self.explainer),
            _service(router_pb2, "RouterService"),
        )

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What runs in the background."""
        return (
            self.view.run(engines=self.engines, leases=self.leases),
            self.claims.run(),
            self.unreported.run(),
        )


@dataclass(frozen=True, slots=True)
class RegistryPart:
    """Sessions, and which other registries share the work on them."""

    registry: SessionRegistry
    members: Members

    def add_to(self, server: GrpcServer) -> None:
        """Adds SessionService."""
        server.add(
            session_pb2_grpc.add_SessionServiceServicer_to_server,
            SessionServicer(registry=self.registry),
            _service(session_pb2, "SessionService"),
        )

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What runs in the background."""
        return self.members.run(), self.registry.run()


def new_replica() -> str:
    """An id for this process, of it alone: what it is to engines, holders and other replicas."""
    return f"replica-{uuid.uuid4().hex[:12]}"


def leases_part(
    settings: LeasesSettings, *, replica: str, store: Store, clock: Clock
) -> LeasesPart:
    """Engines and leases of one replica. Raises InvalidRequest if durations do not fit."""
    homes = EngineHomes(
        replica=replica,
        table=store.table(HOMES),
        anchors=store.anchors,
        clock=clock,
    )
    directory = EngineDirectory(
        table=store.table(ENGINES),
        epochs=store.sequence("epochs"),
        homes=homes,
        anchors=store.anchors,
        reachable=lambda: store.reachable,
        clock=clock,
        plane_version=version("kvplane"),
        config=_config(DirectoryConfig, settings.registration, "registration"),
    )
    manager = LeaseManager(
        table=store.table(LEASES),
        claims=store.table(CLAIMS),
        tokens=store.sequence("tokens"),
        store=store,
        homes=homes,
        engines=directory,
        clock=clock,
        config=_config(LeaseConfig, settings.leases, "leases"),
    )
    return LeasesPart(homes=homes, directory=directory, manager=manager)


def router_part(
    section: RouterSection,
    *,
    engines: Feed[Engine],
    leases: Feed[Lease],
    control: LeaseControl,
    fixed_control: FixedLeaseControl,
    clock: Clock,
) -> RouterPart:
    """A router that follows these feeds."""
    config = RouterConfig(**section.model_dump(exclude={"claim_ttl", "longest_claim"}))
    view = RouterView(clock=clock, grace=config.restart_grace, memory=config.memory)
    in_flight = InFlight(limit=config.max_in_flight, retry_after=config.retry_after)
    claims = LeaseClaims(
        control=control,
        clock=clock,
        holder=f"routers/{uuid.uuid4().hex[:12]}",
        ttl=section.claim_ttl,
        longest=section.longest_claim,
        limit=config.max_in_flight,
    )
    unreported = FixedRetentions(control=fixed_control, clock=clock, limit=config.memory)
    decider = Decider(
        view=view,
        in_flight=in_flight,
        claims=claims,
        unreported=unreported,
        config=config,
        clock=clock,
        new_id=lambda: uuid.uuid4().hex,
    )
    explainer = Explainer(view=view, in_flight=in_flight, config=config)
    return RouterPart(decider, explainer, view, claims, unreported, engines, leases)


def registry_part(
    section: SessionsSection,
    *,
    replica: str,
    store: Store,
    leases: Feed[Lease],
    control: LeaseControl,
    clock: Clock,
) -> RegistryPart:
    """A registry that follows these leases. Raises InvalidRequest if durations do not fit."""
    members = Members(
        member_id=replica,
        member=Member(roles=(ROLE,)),
        table=store.table(MEMBERS),
        anchors=store.anchors,
        clock=clock,
    )
    registry = SessionRegistry(
        table=store.table(SESSIONS),
        codec=SessionCodec(),
        leases=leases,
        control=control,
        members=members,
        reachable=lambda: store.reachable,
        clock=clock,
        config=_config(SessionConfig, section, "sessions"),
    )
    return RegistryPart(registry, members)


def _service(module: Any, name: str) -> str:
    return str(module.DESCRIPTOR.services_by_name[name].full_name)


def _config(kind: Callable[..., C], section: BaseModel, name: str) -> C:
    try:
        return kind(**section.model_dump())
    except ValueError as error:
        raise InvalidRequest(f"settings, section {name}: {error}", field=name) from error
