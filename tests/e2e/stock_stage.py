"""A plane that was told of two engines with vLLM's own connector, and a chat with them."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionMessageParam

from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.router.v1 import router_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.client.names import parse_session_name
from kvplane.client.sync import SyncPlane
from tests.e2e.stage import SYSTEM
from tests.support.plane_process import PlaneProcess
from tests.support.programs import wait_until
from tests.support.vllm_engines import MODEL, ServedPair, transferred

TOKENS = 24
SETTINGS = """
engines = {engines}
[gateway]
response_headers = true
allow_strategy_header = true
[router]
retention_wait = 0.5
[prober]
interval = 0.2
"""
Lease = lease_pb2.Lease


@dataclass(frozen=True, slots=True)
class Said:
    """One turn, whole, and what the prefill engine read for it."""

    text: str
    strategy: str
    session: str
    pulled: int


@dataclass
class StockStage:
    """A plane and two engines that it was told of."""

    plane: PlaneProcess
    pair: ServedPair
    client: OpenAI
    history: list[ChatCompletionMessageParam] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM}]
    )

    def ask(self, question: str, *, stream: bool = False, strategy: str = "auto") -> Said:
        """One turn; its answer becomes history."""
        self.history.append({"role": "user", "content": question})
        said = self.again(stream=stream, strategy=strategy)
        self.history.append({"role": "assistant", "content": said.text})
        return said

    def again(self, *, stream: bool = False, strategy: str = "auto") -> Said:
        """The turn that the history ends with, once more; leaves the history as it is."""
        before = transferred(self.pair.prefill)
        answer = self.client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=self.history,
            max_tokens=TOKENS,
            temperature=0,
            stream=stream,
            extra_headers={"x-session-id": "s", "x-kvplane-strategy": strategy},
        )
        body = answer.parse()
        if isinstance(body, Stream):
            text = "".join(c.delta.content or "" for chunk in body for c in chunk.choices)
        else:
            text = body.choices[0].message.content or ""
        return Said(
            text=text,
            strategy=answer.headers["x-kvplane-strategy"],
            session=answer.headers["x-kvplane-session"],
            pulled=transferred(self.pair.prefill) - before,
        )

    def leases(self) -> list[Lease]:
        """All that are remembered, oldest grant first."""
        with SyncPlane(self.plane.target) as client:
            found = client.each(client.leases.list(include_ended=True))
            return sorted(found, key=lambda lease: lease.fencing_token)

    def wait_lease(self, count: int) -> Lease:
        """Waits until so many leases were granted; returns the newest."""
        wait_until(lambda: len(self.leases()) == count, seconds=10, what=f"{count} leases")
        return self.leases()[-1]

    def explained(self, session: str) -> str:
        """What the router says of the next turn of a session."""
        key = session_pb2.SessionKey(**parse_session_name(session)._asdict())
        with SyncPlane(self.plane.target) as client:
            subject = router_pb2.RouteSubject(session_key=key)
            return client.run(client.router.explain(subject)).decision.details


@contextmanager
def told_of(pair: ServedPair, folder: Path, *, options: str) -> Generator[StockStage]:
    """A plane that knows these engines; `options` are said of the decode engine."""
    named = [f"prefill={pair.prefill.url}", f"decode={pair.decode.url}{options}"]
    plane = PlaneProcess(folder, SETTINGS.format(engines=json.dumps(named)))
    plane.start()

    def registered() -> bool:
        return plane.program is not None and plane.program.output.count("under the stock") == 2

    try:
        wait_until(registered, seconds=15, what="both engines are registered")
        with OpenAI(
            base_url=f"{plane.url}/v1", api_key="sk-e2e", max_retries=0, timeout=60
        ) as client:
            yield StockStage(plane, pair, client)
    finally:
        plane.stop()
