"""A gateway under test with its engines, its router and a client."""

import io
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from kvplane_services.telemetry import Telemetry
from tests.integration.gateway.recording_router import RecordingRouter
from tests.integration.gateway.scripted_engine import ScriptedEngine

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@dataclass
class RunningGateway:
    """What a test talks to and looks at."""

    url: str
    app: web.Application
    router: RecordingRouter
    prefills: list[ScriptedEngine]
    decodes: list[ScriptedEngine]
    session: aiohttp.ClientSession
    telemetry: Telemetry

    @property
    def prefill(self) -> ScriptedEngine:
        return self.prefills[0]

    @property
    def decode(self) -> ScriptedEngine:
        return self.decodes[0]

    async def chat(
        self, body: dict[str, Any] | bytes | None = None, **headers: str
    ) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Posts a chat completion, and reads the whole answer."""
        return await self.post("/v1/chat/completions", CHAT if body is None else body, **headers)

    async def post(
        self, path: str, body: dict[str, Any] | bytes, **headers: str
    ) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Posts JSON, and reads the whole answer."""
        kwargs: dict[str, Any] = (
            {"data": io.BytesIO(body), "headers": {"Content-Type": "application/json"}}
            if isinstance(body, bytes)
            else {"json": body, "headers": {}}
        )
        kwargs["headers"].update({name.replace("_", "-"): v for name, v in headers.items()})
        async with self.session.post(self.url + path, **kwargs) as response:
            return response.status, await response.read(), response

    def metric(self, line: str) -> float:
        """The value of a metric by its name and labels as Prometheus prints them."""
        for one in self.telemetry.render().decode().splitlines():
            name, _, value = one.rpartition(" ")
            if name == line:
                return float(value)
        return 0.0
