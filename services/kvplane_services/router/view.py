"""What the router knows: engines and leases, from feeds, in memory.

Nothing here cannot be rebuilt from the feeds, and reading it never waits. It may lag
behind the lease manager; a decision made on an old view costs a recompute, because the
readers of a retention check what they read.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvplane_services.clock import Clock, wait_set
from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.router.grouped import Grouped
from kvplane_services.router.remembered import Remembered
from kvplane_services.router.tracked import Tracked
from kvplane_services.session.model import SessionKey
from kvplane_services.store.model import Event
from kvplane_services.store.ports import Feed

# Seconds between two looks for what was not named again.
_LAPSE_INTERVAL = 1.0

# Tenant, model, adapter and the digest of some leading messages.
_Messages = tuple[str, str, str, bytes]


@dataclass(frozen=True, slots=True)
class EndedLease:
    """A lease that is over or about to be; `how` says why, in words."""

    lease: str
    engine: str
    fencing_token: int
    how: str


class RouterView:
    """Engines by name; leases by session, and by the messages that they answer."""

    def __init__(self, *, clock: Clock, grace: float, memory: int) -> None:
        self._clock = clock
        self._engines: Tracked[Engine] = Tracked(
            grace=grace, over=lambda engine: engine.state is EngineState.LOST
        )
        self._leases: Tracked[Lease] = Tracked(
            grace=grace, over=lambda lease: lease.state is LeaseState.ENDED
        )
        self._engine_by_name: dict[str, Engine] = {}
        self._serving: Grouped[str, Engine] = Grouped()
        self._live: Grouped[SessionKey, Lease] = Grouped()
        self._live_messages: Grouped[_Messages, SessionKey] = Grouped()
        self._ended: Remembered[SessionKey, EndedLease] = Remembered(memory)
        self._past_messages: Remembered[_Messages, SessionKey] = Remembered(memory)
        self._retained: Remembered[str, None] = Remembered(memory)
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._on_retained: Callable[[str], None] = lambda _: None
        self._models: Remembered[str, None] = Remembered(memory)
        self._grace = grace
        self._synced = asyncio.Event()
        self._settled_at: float | None = None

    async def run(self, *, engines: Feed[Engine], leases: Feed[Lease]) -> None:
        """Follows the feeds until cancelled."""

        async def follow_engines() -> None:
            async for event in engines():
                self.apply_engine(event)

        async def follow_leases() -> None:
            async for event in leases():
                self.apply_lease(event)

        async with asyncio.TaskGroup() as tasks:
            lapsing = tasks.create_task(self._lapse_forever())
            async with asyncio.TaskGroup() as following:
                following.create_task(follow_engines())
                following.create_task(follow_leases())
            lapsing.cancel()

    @property
    def synced(self) -> bool:
        """Whether the full state has been seen once."""
        return self._engines.synced and self._leases.synced

    async def wait_synced(self, seconds: float) -> bool:
        """Waits until the full state has been seen once; False if it is not."""
        return await wait_set(self._synced, seconds, clock=self._clock)

    @property
    def settling(self) -> bool:
        """Whether engines of before a restart may not have registered again yet."""
        return self._settled_at is None or self._clock.now() < self._settled_at

    def on_retained(self, callback: Callable[[str], None]) -> None:
        """Has `callback` told the decision of each turn whose retention is seen, maybe again."""
        self._on_retained = callback

    def apply_engine(self, event: Event[Engine]) -> None:
        """Takes an engine's change in."""
        before, after = self._engines.apply(event, self._clock.now())
        self._note_synced()
        if self._settled_at is None and self._engines.synced:
            self._settled_at = self._clock.now() + self._grace
        if before is not None:
            self._drop_engine(before)
        if after is not None:
            self._engine_by_name[after.name] = after
            for model in after.models:
                self._serving.put(model, after.name, after)
                self._models.put(model, None)

    def apply_lease(self, event: Event[Lease]) -> None:
        """Takes a lease's change in, and wakes decisions that wait for it."""
        before, after = self._leases.apply(event, self._clock.now())
        self._note_synced()
        if before is not None and before.state is LeaseState.ACTIVE:
            self._unindex(before)
        if after is not None and after.state is LeaseState.ACTIVE:
            self._index(after)
        elif before is not None or after is not None:
            self._bury(before, after)
        if after is not None and after.decision_id:
            self._retained.put(after.decision_id, None)
            self._on_retained(after.decision_id)
            for waiting in self._waiting.get(after.decision_id, ()):
                waiting.set()

    def lapse(self, *, most: int = 1000) -> bool:
        """Forgets what a plane or its store had lost, and did not name again in time.

        Args:
            most: How many engines, and leases, are forgotten at most.

        Returns:
            Whether as many were, so that there may be more.

        """
        now = self._clock.now()
        for engine in self._engines.lapse(now, most=most):
            self._drop_engine(engine)
        leases = self._leases.lapse(now, most=most)
        for lease in leases:
            if lease.state is LeaseState.ACTIVE:
                self._unindex(lease)
                self._bury(lease, None)
        return len(leases) == most

    def engines(self) -> Iterable[Engine]:
        """All engines, lost ones included."""
        return self._engine_by_name.values()

    def serving(self, model: str) -> Iterable[Engine]:
        """Engines that serve the model, lost ones included."""
        return self._serving.of(model)

    def engine(self, name: str) -> Engine | None:
        """An engine by its full name."""
        return self._engine_by_name.get(name)

    def served_models(self) -> tuple[str, ...]:
        """Models that some engine decodes which is not lost, sorted: no turn ends without one."""
        return tuple(
            sorted(
                {
                    model
                    for engine in self.engines()
                    if engine.state is not EngineState.LOST and engine.role.decodes
                    for model in engine.models
                }
            )
        )

    @property
    def any_alive(self) -> bool:
        """Whether any engine is registered and not lost."""
        return any(engine.state is not EngineState.LOST for engine in self.engines())

    def ever_served(self, model: str) -> bool:
        """Whether any engine that was seen serves or served the model."""
        return model in self._models

    def live_lease(self, key: SessionKey) -> Lease | None:
        """The session's live lease; the newest one if a newer grant just took over."""
        newest: Lease | None = None
        for lease in self._live.of(key):
            # Those of earlier registrations are over, however late that is told.
            engine = self._engine_by_name.get(lease.engine)
            if engine is not None and lease.engine_epoch < engine.epoch:
                self._unindex(lease)
                self._note_end(lease, f"ended: {engine.name} registered again")
            elif newest is None or lease.fencing_token > newest.fencing_token:
                newest = lease
        return newest

    def ended_lease(self, key: SessionKey) -> EndedLease | None:
        """The session's last lease that ended, while it is remembered."""
        return self._ended.get(key)

    def remember_messages(self, key: SessionKey, digest: bytes) -> None:
        """Notes that a turn of the session had the messages of this digest."""
        if digest:
            self._past_messages.put(_messages(key, digest), key)

    def session_of(self, key: SessionKey, digests: Sequence[bytes]) -> SessionKey | None:
        """The session of a turn that had these messages, or the most of them from the first on.

        Args:
            key: Only sessions of its tenant, model and adapter; its session id is not read.
            digests: One for the first 1, 2, ... n messages.

        """
        for count in range(len(digests), 0, -1):
            messages = _messages(key, digests[count - 1])
            live = self._live_messages.of(messages)
            found = live[-1] if live else self._past_messages.get(messages)
            if found is not None:
                return found
        return None

    def was_retained(self, decision_id: str) -> bool:
        """Whether the retention of this decision's turn was reported."""
        return decision_id in self._retained

    async def wait_retained(self, decision_id: str, seconds: float) -> bool:
        """Waits until the retention of this decision's turn is reported; False if it is not."""
        if self.was_retained(decision_id):
            return True
        arrived = asyncio.Event()
        waiting = self._waiting.setdefault(decision_id, set())
        waiting.add(arrived)
        try:
            await wait_set(arrived, seconds, clock=self._clock)
        finally:
            waiting.discard(arrived)
            if not waiting:
                self._waiting.pop(decision_id, None)
        return self.was_retained(decision_id)

    def _note_synced(self) -> None:
        if self.synced:
            self._synced.set()

    def _drop_engine(self, engine: Engine) -> None:
        self._engine_by_name.pop(engine.name, None)
        for model in engine.models:
            self._serving.drop(model, engine.name)

    async def _lapse_forever(self) -> None:
        while True:
            more = self.lapse()
            # Beside turns, and in small parts: it may be a million leases.
            await self._clock.sleep(0.0 if more else _LAPSE_INTERVAL)

    def _index(self, lease: Lease) -> None:
        self._live.put(lease.session_key, lease.lease_id, lease)
        if lease.message_digest:
            messages = _messages(lease.session_key, lease.message_digest)
            self._live_messages.put(messages, lease.lease_id, lease.session_key)

    def _unindex(self, lease: Lease) -> None:
        self._live.drop(lease.session_key, lease.lease_id)
        if lease.message_digest:
            messages = _messages(lease.session_key, lease.message_digest)
            self._live_messages.drop(messages, lease.lease_id)

    def _bury(self, before: Lease | None, after: Lease | None) -> None:
        lease = after or before
        if lease is None or (after is None and lease.state is LeaseState.ENDED):
            return  # The end of this lease was noted when it ended.
        self._note_end(lease, _how_it_ended(lease, forgotten=after is None))

    def _note_end(self, lease: Lease, how: str) -> None:
        known = self._ended.get(lease.session_key)
        if known is None or known.fencing_token <= lease.fencing_token:
            ended = EndedLease(lease.name, lease.engine, lease.fencing_token, how)
            self._ended.put(lease.session_key, ended)
        self.remember_messages(lease.session_key, lease.message_digest)


def _how_it_ended(lease: Lease, *, forgotten: bool) -> str:
    if lease.end_reason is not None:
        return f"ended: {lease.end_reason.value}"
    if forgotten:
        return "is no longer known to the lease manager"
    if lease.release_reason is EndReason.CONSUMED:
        return "was given out to be read, and a read consumes it"
    return "is being released"


def _messages(key: SessionKey, digest: bytes) -> _Messages:
    return key.tenant, key.model, key.adapter, digest
