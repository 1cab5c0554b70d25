"""Gives reported retentions their leases: new ones, or those that they had in an earlier life.

A retention that had a lease keeps its token, also where the lease has ended meanwhile and it gets
another: tokens tell which of a session's turns is the newest.
"""

from collections.abc import Iterable

from kvplane_services.clock import Clock, within
from kvplane_services.engine.model import Engine
from kvplane_services.errors import StoreRefused, Unavailable
from kvplane_services.lease.awaited import Awaited
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.grants import lease_id_for, lease_id_of
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason, Lease
from kvplane_services.lease.record import Record
from kvplane_services.lease.reports import RetentionReport
from kvplane_services.lease.tokens import Drawn, TokenIssuer
from kvplane_services.store.ports import Store

# What an engine's frame waits for tokens at most, in seconds.
_MOMENT = 0.25


class Granting:
    """Enters leases on retentions into the ledger."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        issuer: TokenIssuer,
        store: Store,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._issuer = issuer
        self._store = store
        self._clock = clock
        self._config = config

    def knows(self, lease_id: str) -> bool:
        """Whether the id is or was that of a lease, as far as this replica remembers."""
        return (
            self._ledger.knows(lease_id)
            or self._elsewhere.find(lease_id) is not None
            or self._elsewhere.find_ended(lease_id) is not None
        )

    async def draw(self, count: int) -> Drawn | None:
        """Tokens for so many retentions, or None if they cannot be had at once."""
        if not self._store.reachable:
            return None
        try:
            return await within(self._issuer.draw(count), _MOMENT, clock=self._clock)
        except (TimeoutError, Unavailable, StoreRefused):
            return None

    def grant(self, engine: Engine, awaited: Iterable[Awaited], drawn: Drawn) -> None:
        """Enters a lease on each retention; the tokens are enough for all."""
        ids = [(one, self._adoptable(one.retention, drawn)) for one in awaited]
        token = drawn.first
        for one, adopted in ids:
            if adopted is not None:
                # Whatever clock it came from, what is granted from here on is newer.
                self._issuer.note(one.retention.fencing_token)
                token = max(token, one.retention.fencing_token + 1)
        for one, adopted in ids:
            retention = one.retention
            if adopted is not None and not self.knows(adopted):
                self._enter(engine, one, adopted, retention.fencing_token)
                continue
            lease_id = lease_id_for(
                engine.engine_id, engine.epoch, retention.retention_id, taken=self.knows
            )
            before = self._ended_before(engine, retention)
            if before is not None:
                self._go_on(before, self._enter(engine, one, lease_id, before.fencing_token))
                continue
            self._issuer.note(token)
            self._enter(engine, one, lease_id, token)
            token += 1

    def _adoptable(self, retention: RetentionReport, drawn: Drawn) -> str | None:
        # A lease that is known here, live elsewhere or ended, is never taken up again.
        lease_id = lease_id_of(retention.lease)
        if lease_id is None or self.knows(lease_id):
            return None
        return lease_id if drawn.may_adopt(retention.fencing_token) else None

    def _ended_before(self, engine: Engine, retention: RetentionReport) -> Lease | None:
        """The ended lease under which the engine has held this very retention until now.

        It ended without the engine's word: its registration was lost, or its news.
        """
        lease_id = lease_id_of(retention.lease)
        if lease_id is None:
            return None
        ended = self._ledger.find_ended(lease_id) or self._elsewhere.find_ended(lease_id)
        if ended is None or (ended.engine_id, ended.retention_id, ended.fencing_token) != (
            engine.engine_id,
            retention.retention_id,
            retention.fencing_token,
        ):
            return None
        return ended

    def _go_on(self, before: Lease, record: Record) -> None:
        """A lease with the token of one that ended keeps its place, and its way out.

        With a new token the blocks of an older turn would supersede those of a newer one, and
        what somebody gave up would be back.
        """
        if before.end_reason in (EndReason.RELEASED, EndReason.SUPERSEDED):
            self._ledger.release(record, before.end_reason)

    def _enter(self, engine: Engine, awaited: Awaited, lease_id: str, token: int) -> Record:
        retention = awaited.retention
        record = self._ledger.grant(
            Lease(
                lease_id=lease_id,
                session_key=retention.session_key,
                engine_id=engine.engine_id,
                engine_epoch=engine.epoch,
                retention_id=retention.retention_id,
                fencing_token=token,
                tokens=retention.tokens,
                blocks=retention.blocks,
                handle=retention.handle,
                decision_id=retention.decision_id,
                message_digest=retention.message_digest,
                reads=retention.reads,
                create_time=self._clock.wall(),
            ),
            ttl=self._config.ttl,
            now=self._clock.now(),
        )
        remaining = min(retention.remaining, self._config.max_fixed_ttl)
        self._ledger.hold_until(record, awaited.reported_at + remaining)
        return record
