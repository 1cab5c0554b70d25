"""An engine for tests of a real plane: an `EngineLink` and a log of retentions, no model."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    Clock,
    Directive,
    EndReason,
    EngineLink,
    EngineLoad,
    LinkTiming,
    Release,
    Renew,
    Retention,
    RetentionLog,
    SessionKey,
    SystemClock,
    Tls,
)
from kvplane.digest import chain_of, context_of

QUICK = LinkTiming(answer_timeout=2.0, first_backoff=0.02, longest_backoff=0.2, close_timeout=2.0)


class LinkedEngine(RetentionLog):
    """Holds retentions and does as the plane asks."""

    def __init__(
        self,
        engine_id: str,
        target: str,
        *,
        model: str = "m",
        role: engine_pb2.Role.ValueType = engine_pb2.ROLE_DECODE,
        tls: Tls | None = None,
    ) -> None:
        super().__init__()
        self.engine_id = engine_id
        self.clock: Clock = SystemClock()
        self.directives: list[Directive] = []
        self.link = EngineLink(
            target=target,
            engine_id=engine_id,
            engine=description(engine_id, model, role),
            source=self,
            timing=QUICK,
            tls=tls,
        )

    def retain(self, retention_id: str, key: SessionKey, *, tokens: int = 256) -> None:
        """A turn finished and left its blocks."""
        params = {"remote_request_id": retention_id, "remote_engine_id": self.engine_id}
        self.put(
            Retention(
                retention_id=retention_id,
                session_key=key,
                tokens=tokens,
                blocks=tokens // 16,
                kv_transfer_params=json.dumps(params).encode(),
                deadline=self.clock.now() + 30.0,
                digests=chain_of(range(tokens), context_of()),
            )
        )
        self.link.notify()

    def load(self) -> EngineLoad:
        """See `RetentionSource.load`."""
        blocks = sum(one.blocks for one in self.held.values())
        return EngineLoad(used_blocks=blocks, retained_blocks=blocks, retentions=len(self.held))

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        """See `RetentionSource.apply`."""
        self.directives.extend(directives)
        for one in directives:
            match one:
                case Renew(retention_id, lease, fencing_token, ttl):
                    self.renew(
                        retention_id,
                        deadline=sent_at + ttl,
                        lease=lease,
                        fencing_token=fencing_token,
                    )
                case Release(retention_id, _, _, reason):
                    self.end(retention_id, reason or EndReason.RELEASED)
                    self.link.notify()


def description(engine_id: str, model: str, role: engine_pb2.Role.ValueType) -> engine_pb2.Engine:
    """What an engine with kvplane's connector registers."""
    return engine_pb2.Engine(
        role=role,
        endpoint="http://127.0.0.1:8200",
        nixl=engine_pb2.NixlAddress(host="127.0.0.1", port=5600, engine_id=f"nixl-{engine_id}"),
        models=[model],
        layout=engine_pb2.KvLayout(block_size=16, total_blocks=1000, dtype="float32"),
        build=engine_pb2.EngineBuild(
            connector=engine_pb2.EngineBuild.CONNECTOR_KVPLANE,
            connector_version=version("kvplane"),
            vllm_version="0.32.0",
            nixl_version="1.5.1",
        ),
    )


@asynccontextmanager
async def linked_engine(
    engine_id: str,
    target: str,
    *,
    model: str = "m",
    role: engine_pb2.Role.ValueType = engine_pb2.ROLE_DECODE,
    tls: Tls | None = None,
) -> AsyncIterator[LinkedEngine]:
    """Registers an engine for the duration of the block."""
    engine = LinkedEngine(engine_id, target, model=model, role=role, tls=tls)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.link.run())
        try:
            await eventually(lambda: engine.link.connected)
            yield engine
        finally:
            await engine.link.aclose()


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 15.0
) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)  # noqa: TID251 - a real process takes its time
