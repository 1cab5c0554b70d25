"""Engines with the stock connector, named by hand: found, registered and kept by probing."""

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import aiohttp

from kvplane_services.clock import Clock
from kvplane_services.engine.addresses import check_endpoint
from kvplane_services.engine.answers import HeartbeatAnswer, HeartbeatOutcome, Registration
from kvplane_services.engine.model import (
    ConnectorKind,
    Engine,
    EngineBuild,
    EngineLoad,
    FixedRetention,
    Role,
)
from kvplane_services.errors import AlreadyExists, Conflict, InvalidRequest, KvplaneError

_log = logging.getLogger(__name__)


class Directory(Protocol):
    """What the prober asks of the directory of engines."""

    def attended(self, engine_id: str) -> bool:
        """Whether another replica of the plane keeps the engine registered."""
        ...

    async def register(
        self, engine: Engine, *, ttl: float = 0.0, request_id: str = "", first_come: bool = False
    ) -> Registration:
        """Registers an engine. Raises KvplaneError: AlreadyExists if another replica does."""
        ...

    async def heartbeat(
        self, engine_id: str, epoch: int, load: EngineLoad | None = None
    ) -> HeartbeatAnswer:
        """Extends a registration. Raises Unavailable, Conflict."""
        ...


@dataclass(frozen=True, slots=True)
class NamedEngine:
    """An engine that an operator named, and what they said of the turns that it keeps."""

    role: Role
    endpoint: str
    fixed_retention: FixedRetention | None = None

    @classmethod
    def parse(cls, text: str) -> "NamedEngine":
        """The engine in `ROLE=URL[,keeps=SECONDS[,trust-history]]`.

        Such as `decode=http://127.0.0.1:8200,keeps=480`.

        Raises:
            InvalidRequest: It is not of that form.

        """
        named, *options = text.split(",")
        role, separator, url = named.partition("=")
        known = {one.value: one for one in Role}
        if not separator or role not in known:
            raise InvalidRequest(
                f"engine {text!r} is not of the form ROLE=URL with ROLE one of "
                f"{', '.join(known)}, for example prefill=http://127.0.0.1:8100",
                field="engines",
            )
        return cls(
            role=known[role],
            endpoint=check_endpoint(url, field="engines"),
            fixed_retention=_fixed_retention(text, Role(role), options),
        )

    @property
    def engine_id(self) -> str:
        """An id that stays the same over restarts of the plane."""
        digest = hashlib.blake2b(self.endpoint.encode(), digest_size=4).hexdigest()
        return f"{self.role.value}-{digest}"

    @property
    def losses(self) -> str:
        """What is lost, for the connector of the engine is the stock one."""
        if not self.role.decodes:
            return "it reads what has no proof, or fails the turn; nothing is said of its reads"
        if self.fixed_retention is None:
            return "what it keeps is not known: every turn is computed anew"
        known = (
            f"it keeps a turn for {self.fixed_retention.ttl:g} s, or one read: nothing is renewed "
            "or released, and answers that stream do not tell of it"
        )
        if self.fixed_retention.trust_history:
            return f"{known}; turns that continue a chat read its blocks without proof of tokens"
        return f"{known}; its blocks have no proof, so prefill engines do not read them"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """How engines are probed; durations in seconds.

    An engine whose last `failures` probes all failed is lost.
    """

    interval: float
    timeout: float
    failures: int

    @property
    def ttl(self) -> float:
        """How long a registration lasts beyond the last good probe."""
        return self.failures * (self.interval + self.timeout)


async def probe(
    engines: Sequence[NamedEngine], *, directory: Directory, clock: Clock, plan: ProbePlan
) -> None:
    """Keeps engines registered until cancelled; see `Prober`."""
    async with aiohttp.ClientSession() as session:
        await Prober(
            engines=engines, directory=directory, session=session, clock=clock, plan=plan
        ).run()


def _fixed_retention(text: str, role: Role, options: Sequence[str]) -> FixedRetention | None:
    """What the options behind an engine say. Raises InvalidRequest."""
    if not options:
        return None
    keeps, *others = options
    name, separator, value = keeps.partition("=")
    try:
        ttl = float(value) if name == "keeps" and separator else 0.0
    except ValueError:
        ttl = 0.0
    if not 0 < ttl < math.inf or others not in ([], ["trust-history"]) or not role.decodes:
        raise InvalidRequest(
            f"engine {text!r}: what may follow the URL of an engine that decodes is ,keeps=SECONDS "
            "(its decoder_kv_blocks_ttl) and after that ,trust-history, as in "
            "decode=http://127.0.0.1:8200,keeps=480",
            field="engines",
        )
    return FixedRetention(ttl=ttl, trust_history=bool(others))


class _ProbeFailed(Exception):
    """The engine did not answer as it should; says how."""


class Prober:
    """Registers engines once they answer, and keeps them registered while they do.

    An engine that stops answering is not deregistered: its registration runs out, as that of
    an engine that misses its heartbeats. Of several replicas that name the same engine the first
    keeps it; the others stand by, and one of them takes over when its registration runs out.
    """

    def __init__(
        self,
        *,
        engines: Sequence[NamedEngine],
        directory: Directory,
        session: aiohttp.ClientSession,
        clock: Clock,
        plan: ProbePlan,
    ) -> None:
        self._engines = engines
        self._directory = directory
        self._session = session
        self._clock = clock
        self._plan = plan

    async def run(self) -> None:
        """Probes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for named in self._engines:
                tasks.create_task(self._keep(named))

    async def _keep(self, named: NamedEngine) -> None:
        registered: Engine | None = None
        answers = True
        while True:
            try:
                models = await self._models_of(named)
                registered = await self._register_or_extend(named, models, registered)
                if not answers:
                    _log.info("engine %s answers again", named.endpoint)
                answers = True
            except _ProbeFailed as error:
                if answers:
                    _log.warning("engine %s %s", named.endpoint, error)
                answers = False
            except (AlreadyExists, Conflict):
                registered = None  # Another replica was quicker.
            except KvplaneError as error:
                if answers:
                    _log.warning("engine %s is not registered: %s", named.endpoint, error.message)
                answers = False
            await self._clock.sleep(self._plan.interval)

    async def _register_or_extend(
        self, named: NamedEngine, models: tuple[str, ...], registered: Engine | None
    ) -> Engine | None:
        if self._directory.attended(named.engine_id):
            if registered is not None:
                _log.info("%s is now kept by another replica", registered.name)
            return None
        if registered is not None and registered.models == models:
            answer = await self._directory.heartbeat(registered.engine_id, registered.epoch)
            if answer.outcome is HeartbeatOutcome.RENEWED:
                return registered
        engine = Engine(
            engine_id=named.engine_id,
            role=named.role,
            endpoint=named.endpoint,
            models=models,
            build=EngineBuild(connector=ConnectorKind.STOCK),
            fixed_retention=named.fixed_retention,
        )
        registration = await self._directory.register(engine, ttl=self._plan.ttl, first_come=True)
        _log.info(
            "%s at %s serves %s under the stock connector: %s",
            engine.name,
            named.endpoint,
            ", ".join(models),
            named.losses,
        )
        return registration.engine

    async def _models_of(self, named: NamedEngine) -> tuple[str, ...]:
        """Served model names. Raises _ProbeFailed."""
        await self._get(f"{named.endpoint}/health")
        body = await self._get(f"{named.endpoint}/v1/models")
        try:
            models = tuple(str(model["id"]) for model in json.loads(body)["data"])
        except (ValueError, TypeError, KeyError):
            raise _ProbeFailed("does not list its models as OpenAI's API does") from None
        if not models:
            raise _ProbeFailed("serves no model")
        return models

    async def _get(self, url: str) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self._plan.timeout)
        try:
            async with self._session.get(url, timeout=timeout) as response:
                if response.status != HTTPStatus.OK:
                    raise _ProbeFailed(f"answers {response.status} to GET {response.url.path}")
                return await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _ProbeFailed(
                f"cannot be reached: {str(error) or type(error).__name__}"
            ) from error
