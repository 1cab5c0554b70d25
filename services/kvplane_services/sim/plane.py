"""The simulated engine's connector: what it tells the plane, and how it takes directives."""

import json
from collections.abc import Callable, Sequence

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import EngineLoad, RetentionLog, SessionKey
from kvplane.client.retention import Directive, EndReason, Report
from kvplane.client.retention import Retention as Reported
from kvplane.client.transports import EngineTransport, HeartbeatStream
from kvplane.transfer_params import KEY, TurnMark, encode_proof
from kvplane_services.clock import Clock
from kvplane_services.engine.model import Role
from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.config import SimEngineConfig
from kvplane_services.sim.retentions import Retention, RetentionTable
from kvplane_services.sim.scheduler import Scheduler
from kvplane_services.sim.transfers import Peer

# Which vLLM the simulation follows, and that version's NIXL connector protocol.
SIMULATED_VLLM = "0.32.0"
SIMULATED_NIXL_CONNECTOR = 14


class RetentionReporter:
    """Notes for the plane what becomes of retentions. Implements `RetentionObserver`.

    Args:
        exported_clock: Turns a time of this engine into the time that handles carry.
        block_size: Tokens per block, which handles say.

    """

    def __init__(self, *, exported_clock: Callable[[float], float], block_size: int) -> None:
        self._exported_clock = exported_clock
        self._block_size = block_size
        self.log = RetentionLog()
        self.wake: Callable[[], None] = lambda: None

    def began(self, retention: Retention) -> None:
        """See `RetentionObserver.began`."""
        self._put(retention)
        self.wake()

    def renewed(self, retention: Retention) -> None:
        """See `RetentionObserver.renewed`."""
        self.log.renew(
            retention.retention_id,
            deadline=retention.ends_at,
            lease=retention.lease,
            fencing_token=retention.fencing_token,
        )

    def exported(self, retention: Retention) -> None:
        """See `RetentionObserver.exported`."""
        self._put(retention)
        self.wake()

    def was_read(self, retention: Retention) -> None:
        """See `RetentionObserver.was_read`."""
        self.log.read(retention.retention_id, retention.reads)
        self.wake()

    def ended(self, retention: Retention, reason: EndReason) -> None:
        """See `RetentionObserver.ended`."""
        self.log.end(retention.retention_id, reason)
        self.wake()

    def _put(self, retention: Retention) -> None:
        mark, proof = retention.mark, retention.proof
        if mark is None or proof is None:
            return
        params = {
            **retention.params,
            "remote_blocks_expiry_time": self._exported_clock(retention.exported),
            KEY: {**encode_proof(proof), "block_size": self._block_size},
        }
        self.log.put(
            Reported(
                retention_id=retention.retention_id,
                session_key=_session_key(mark),
                tokens=retention.tokens,
                blocks=len(retention.block_ids),
                kv_transfer_params=json.dumps(params).encode(),
                deadline=retention.ends_at,
                digests=proof,
                decision_id=mark.decision_id,
                message_digest=mark.message_digest,
                lease=retention.lease,
                fencing_token=retention.fencing_token,
                reads=retention.reads,
            )
        )


class PlaneSource:
    """What `EngineLink` asks of the engine. Implements `RetentionSource`."""

    def __init__(
        self,
        *,
        reporter: RetentionReporter,
        retentions: RetentionTable,
        scheduler: Scheduler,
        pool: BlockPool,
        clock: Clock,
    ) -> None:
        self._log = reporter.log
        self._retentions = retentions
        self._scheduler = scheduler
        self._pool = pool
        self._clock = clock

    def full_report(self) -> Report:
        """See `RetentionSource.full_report`."""
        return self._log.full_report()

    def changes(self) -> Report:
        """See `RetentionSource.changes`."""
        return self._log.changes()

    def acknowledge(self, report: Report) -> None:
        """See `RetentionSource.acknowledge`."""
        self._log.acknowledge(report)

    def load(self) -> EngineLoad:
        """See `RetentionSource.load`."""
        return EngineLoad(
            running_requests=self._scheduler.running,
            waiting_requests=self._scheduler.waiting,
            used_blocks=self._pool.used,
            retained_blocks=self._retentions.blocks(),
            retentions=len(self._retentions),
        )

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        """See `RetentionSource.apply`."""
        now = self._clock.now()
        for directive in directives:
            self._retentions.apply(directive, sent_at=sent_at, now=now)


class MutableTransport:
    """A link's transport over which nothing goes while the engine is mute, as if it were frozen.

    Implements `EngineTransport`.

    Args:
        inner: Where calls and frames go.
        muted: Whether the engine is mute now.
        clock: Time.

    """

    def __init__(self, inner: EngineTransport, *, muted: Callable[[], bool], clock: Clock) -> None:
        self._inner = inner
        self._muted = muted
        self._clock = clock

    @property
    def address(self) -> str:
        """See `EngineTransport.address`."""
        return self._inner.address

    async def register(
        self, request: engine_pb2.RegisterEngineRequest, *, seconds: float
    ) -> engine_pb2.RegisterEngineResponse:
        """See `EngineTransport.register`."""
        await self.unmuted()
        return await self._inner.register(request, seconds=seconds)

    async def deregister(
        self, request: engine_pb2.DeregisterEngineRequest, *, seconds: float
    ) -> None:
        """See `EngineTransport.deregister`."""
        await self._inner.deregister(request, seconds=seconds)

    def open(self) -> HeartbeatStream:
        """See `EngineTransport.open`."""
        return _MutableStream(self._inner.open(), transport=self)

    async def leave(self, *, silent: bool = False) -> None:
        """See `EngineTransport.leave`."""
        await self._inner.leave(silent=silent)

    async def aclose(self) -> None:
        """See `EngineTransport.aclose`."""
        await self._inner.aclose()

    async def unmuted(self) -> None:
        """Returns once the engine may speak."""
        while self._muted():
            await self._clock.sleep(0.05)


class _MutableStream:
    def __init__(self, inner: HeartbeatStream, *, transport: MutableTransport) -> None:
        self._inner = inner
        self._transport = transport

    async def exchange(
        self, frame: engine_pb2.HeartbeatEngineRequest
    ) -> engine_pb2.HeartbeatEngineResponse:
        await self._transport.unmuted()
        return await self._inner.exchange(frame)

    def on_over(self, callback: Callable[[], None]) -> None:
        self._inner.on_over(callback)

    def cancel(self) -> None:
        self._inner.cancel()


def describe_engine(
    *, config: SimEngineConfig, endpoint: str, address: Peer, version: str
) -> engine_pb2.Engine:
    """What the engine registers as."""
    roles = {
        Role.PREFILL: engine_pb2.ROLE_PREFILL,
        Role.DECODE: engine_pb2.ROLE_DECODE,
        Role.BOTH: engine_pb2.ROLE_BOTH,
    }
    return engine_pb2.Engine(
        role=roles[config.role],
        endpoint=endpoint,
        nixl=engine_pb2.NixlAddress(
            host=address.host, port=address.port, engine_id=address.engine_id
        ),
        models=[config.model],
        layout=engine_pb2.KvLayout(
            block_size=config.shape.block_size,
            total_blocks=config.shape.blocks,
            dtype="simulated",
            tensor_parallel_size=1,
            compatibility_hash=f"sim-{config.shape.seed}",
        ),
        build=engine_pb2.EngineBuild(
            connector=engine_pb2.EngineBuild.CONNECTOR_KVPLANE,
            connector_version=version,
            vllm_version=SIMULATED_VLLM,
            nixl_connector_version=SIMULATED_NIXL_CONNECTOR,
        ),
        labels=config.labels,
    )


def _session_key(mark: TurnMark) -> SessionKey:
    return SessionKey(mark.tenant, mark.model, mark.adapter, mark.session_id)
