"""An engine that speaks the contract by hand: registers, and reports one retention."""

import asyncio
import json
from types import TracebackType
from typing import Any, Self

import grpc.aio

from kvplane.api.engine.v1 import engine_pb2 as pb
from kvplane.api.engine.v1 import engine_pb2_grpc
from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane_services.session.model import SessionKey

MODEL = "m"
HANDLE = {"remote_engine_id": "x", "remote_block_ids": [[1]], "remote_num_tokens": 100}


class WireEngine:
    """One registered engine with one open heartbeat stream."""

    def __init__(self, address: str, engine_id: str, role: pb.Role.ValueType) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub: Any = engine_pb2_grpc.EngineServiceStub(self._channel)
        self._role = role
        self._stream: Any = None
        self._sequence = 0
        self.engine_id = engine_id
        self.name = f"engines/{engine_id}"
        self.epoch = 0

    async def __aenter__(self) -> Self:
        await self.register()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close(None)

    async def register(self) -> None:
        """Registers, waiting for the plane if it is away, and sends an empty full report."""
        request = pb.RegisterEngineRequest(
            engine_id=self.engine_id,
            engine=pb.Engine(
                role=self._role,
                endpoint=f"http://{self.engine_id}.test:8000",
                models=[MODEL],
                nixl=pb.NixlAddress(host=f"{self.engine_id}.test", port=5600, engine_id="x"),
                layout=pb.KvLayout(block_size=16, total_blocks=1000),
                build=pb.EngineBuild(
                    connector=pb.EngineBuild.CONNECTOR_KVPLANE,
                    connector_version="0.1.0",
                    vllm_version="0.32.0",
                ),
            ),
        )
        answer = await self._stub.RegisterEngine(request, wait_for_ready=True, timeout=20)
        self.epoch = answer.engine.epoch
        self._stream = self._stub.HeartbeatEngine()
        await self.heartbeat(full_report=True)

    async def heartbeat(self, **news: Any) -> pb.HeartbeatEngineResponse:
        """Sends one frame and returns its answer."""
        self._sequence += 1
        await self._stream.write(
            pb.HeartbeatEngineRequest(
                sequence=self._sequence, name=self.name, epoch=self.epoch, **news
            )
        )
        async with asyncio.timeout(10):
            answer: pb.HeartbeatEngineResponse = await self._stream.read()
        assert answer.sequence == self._sequence
        return answer

    async def retain(
        self,
        key: SessionKey,
        *,
        decision_id: str,
        message_digest: bytes = b"",
        full_report: bool = False,
    ) -> str:
        """Reports the retention that a turn left; returns the lease it was granted."""
        retention = pb.Retention(
            retention_id=f"r-{decision_id}",
            session_key=session_pb2.SessionKey(
                tenant=key.tenant, model=key.model, adapter=key.adapter, session_id=key.session_id
            ),
            decision_id=decision_id,
            tokens=100,
            blocks=7,
            handle=lease_pb2.Handle(kv_transfer_params=json.dumps(HANDLE).encode()),
            message_digest=message_digest,
        )
        retention.remaining.FromSeconds(30)
        answer = await self.heartbeat(retentions=[retention], full_report=full_report)
        [lease] = [one.lease for one in answer.directives if one.HasField("renew")]
        return lease
