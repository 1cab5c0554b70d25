"""What a run runs on: a plane, a prefill and a decode engine, and the hands that disturb them."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path

import aiohttp

from kvplane.client.plane import Plane
from kvplane_services.clock import Clock
from kvplane_services.demo.engine_metrics import PromptTokens, read_prompt_tokens
from kvplane_services.local.engines import (
    LocalEngine,
    make_model,
    prefill_and_decode,
    running_engines,
)
from kvplane_services.local.errand import Progress
from tests.support.plane_process import PlaneProcess
from tests.support.vllm_engines import IMPORT_PATHS, MODEL, ROOT, engine_python

# Seconds. Leases of sessions that nobody uses end one TTL after their last turn.
TTL = 6
_PLANE = f"""
[gateway]
response_headers = true
allow_strategy_header = true
[registration]
ttl = 5
heartbeat_interval = 0.25
[leases]
ttl = {TTL}
idle_keep = 0
retention_budget = 0.7
[router]
retention_wait = 0.5
"""
# KV blocks of 128 tokens at decode: memory for what some conversations leave, soon written over.
_BLOCKS = 64
_READS = "reads"
# For what runs inside of engines, and is found under `tests`.
_PATHS = (*IMPORT_PATHS, ROOT)
_MAX_TOKENS = 4096
_PATIENCE = 60.0
_POLL = 0.02
_BLOCK = 128


class Deployment:
    """Everything that runs.

    Args:
        gateway: Base URL.
        engines: The prefill engine, which has no prefix cache, and the decode engine.
        plane: Client of the plane.
        http: Session to ask engines with.
        folder: For logs and `HeldReads`.
        stack: Ends what is started meanwhile.
        clock: Time.

    """

    def __init__(
        self,
        *,
        gateway: str,
        engines: Sequence[LocalEngine],
        plane: Plane,
        http: aiohttp.ClientSession,
        folder: Path,
        stack: contextlib.AsyncExitStack,
        clock: Clock,
    ) -> None:
        self.gateway = gateway
        self.prefill, self.decode = engines
        self._plane = plane
        self._http = http
        self._folder = folder
        self._stack = stack
        self._clock = clock
        self._filled = 0
        self._restarts = 0

    @property
    def restarts(self) -> int:
        """How many engines were restarted."""
        return self._restarts

    # -- What turns cost

    async def counted(self) -> Mapping[str, PromptTokens]:
        """What both engines count, without what `overwrite` had decode compute."""
        prefill, decode = await asyncio.gather(
            *(read_prompt_tokens(self._http, one.url) for one in (self.prefill, self.decode))
        )
        own = dataclasses.replace(decode, computed=decode.computed - self._filled)
        return {"prefill": prefill, "decode": own}

    # -- Leases

    async def lease_of(self, session: str) -> tuple[str, int] | None:
        """Name and fencing token of a session's live lease; `session` is its name in the plane."""
        found = [
            (one.name, one.fencing_token) async for one in self._plane.leases.list(session=session)
        ]
        return max(found, key=lambda one: one[1], default=None)

    async def release(self, lease: tuple[str, int]) -> None:
        """Asks the plane to end a lease."""
        await self._plane.leases.release(lease[0], fencing_token=lease[1])

    async def is_freed(self, session: str, *, within: float) -> bool:
        """Whether the engine said in time that it gave up what it held of a session."""
        deadline = self._clock.now() + within
        while await self.lease_of(session) is not None:
            if self._clock.now() > deadline:
                return False
            await self._clock.sleep(_POLL)
        return True

    # -- Disturbances

    @contextlib.contextmanager
    def held_reads(self) -> Iterator["HeldReads"]:
        """While the block runs the prefill engine stands still where it would begin a read."""
        held = HeldReads(self._folder / _READS, self._clock)
        held.begin()
        try:
            yield held
        finally:
            held.end()

    async def overwrite(self, dice: random.Random, *, everything: bool = False) -> None:
        """Has the decode engine write over its memory, with prompts of nobody's.

        Args:
            dice: Makes the prompts up.
            everything: Over what is retained too, which has to make way; else over what is free.

        """
        free = 1.0 if everything else 1 - await self._usage()
        # Block 0 is vLLM's own.
        blocks = int(free * (_BLOCKS - 1))
        tokens = blocks * _BLOCK
        lengths = [min(_MAX_TOKENS, tokens - at) for at in range(0, tokens, _MAX_TOKENS)]
        # One less, for the token that is generated.
        prompts = [[dice.randrange(4, 380) for _ in range(length - 1)] for length in lengths]
        await asyncio.gather(*(self._fill(prompt) for prompt in prompts if prompt))

    async def restart_decode(self) -> None:
        """Kills the decode engine, and starts another at its addresses."""
        self.decode.process.kill()
        self._restarts += 1
        self._filled = 0
        (self.decode,) = await self._stack.enter_async_context(
            running_engines(
                self.decode.options,
                engine_python=engine_python(),
                log_dir=self._folder / f"restart-{self._restarts}",
                import_paths=_PATHS,
                clock=self._clock,
            )
        )

    async def registered(self) -> None:
        """Waits until the plane counts on both engines as they are now."""
        deadline = self._clock.now() + _PATIENCE
        while True:
            found = [one async for one in self._plane.engines.list()]
            if sum(one.state == one.STATE_ACTIVE for one in found) == 2:
                return
            if self._clock.now() > deadline:
                raise TimeoutError("the engines did not register at the plane")
            await self._clock.sleep(0.1)

    async def _usage(self) -> float:
        async with self._http.get(f"{self.decode.url}/metrics") as answer:
            text = await answer.text()
        for line in text.splitlines():
            if line.startswith("vllm:kv_cache_usage_perc{"):
                return float(line.rpartition(" ")[2])
        return 0.0

    async def _fill(self, prompt: list[int]) -> None:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        async with self._http.post(f"{self.decode.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            await answer.read()
        self._filled += len(prompt)


class HeldReads:
    """The folder by which reads of an engine are held up that runs `held_reads`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._held = folder / "held"
        self._reached = folder / "reached"
        self._clock = clock

    def begin(self) -> None:
        """From now on."""
        self._reached.unlink(missing_ok=True)
        self._held.touch()

    def end(self) -> None:
        """Reads go on."""
        self._held.unlink(missing_ok=True)

    async def reached(self, turn: "asyncio.Task[object]") -> bool:
        """Waits until a read is held up; False if the turn is over without one."""
        while not self._reached.exists():
            if turn.done():
                return False
            await self._clock.sleep(_POLL)
        return True


@contextlib.asynccontextmanager
async def running_deployment(
    *, folder: Path, http: aiohttp.ClientSession, connector: str, clock: Clock, say: Progress
) -> AsyncGenerator[Deployment]:
    """Starts everything, and stops it at the end.

    Args:
        folder: For the model, settings and logs.
        http: Session to ask engines with.
        connector: Module of the prefill engine's connector, of `in_engines`.
        clock: Time.
        say: Called with a line for people whenever there is something to say.

    Raises:
        StartError: An engine did not start.

    """
    python = engine_python()
    model = folder / "model"
    (folder / _READS).mkdir(exist_ok=True)
    await make_model(engine_python=python, folder=model, import_paths=IMPORT_PATHS)
    plane = PlaneProcess(folder, _PLANE)
    plane.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(plane.stop)
        prefill, decode = prefill_and_decode(model_dir=model, plane=plane.target)
        options = (
            dataclasses.replace(
                prefill,
                max_tokens=_MAX_TOKENS,
                connector_module=connector,
                extra_config={"held_reads": str(folder / _READS)},
            ),
            dataclasses.replace(decode, max_tokens=_MAX_TOKENS, blocks=_BLOCKS),
        )
        engines = await stack.enter_async_context(
            running_engines(
                *options,
                engine_python=python,
                log_dir=folder,
                import_paths=_PATHS,
                progress=say,
                clock=clock,
            )
        )
        client = await stack.enter_async_context(Plane(plane.target))
        deployment = Deployment(
            gateway=plane.url,
            engines=engines,
            plane=client,
            http=http,
            folder=folder,
            stack=stack,
            clock=clock,
        )
        await deployment.registered()
        yield deployment
