"""Keeps the leases of turns in flight claimed at the lease manager.

Claims are made in the background: a decision never waits for one. A claim that is lost or
late costs a recompute, nothing else. So is the end of one: a turn that waits long somewhere
must not hold memory for which others wait.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError
from kvplane_services.lease.model import RenewalOutcome
from kvplane_services.lease.ports import MAX_RENEWALS, LeaseControl, LeaseRenewal

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Claim:
    fencing_token: int
    # Until when each turn claims it.
    turns: dict[str, float] = field(default_factory=dict[str, float])
    due: bool = True


class LeaseClaims:
    """One claim per lease, however many turns use it, all under one holder's name.

    Args:
        control: Where to claim.
        clock: Times the repeats.
        holder: Name of this router, such as `routers/3f2a`.
        ttl: Seconds that a claim lasts; it is repeated every third of that.
        longest: Seconds after which a turn's claim is no longer repeated, but dropped.
        limit: Leases claimed at once; further turns go without a claim.

    """

    def __init__(
        self,
        *,
        control: LeaseControl,
        clock: Clock,
        holder: str,
        ttl: float,
        longest: float,
        limit: int,
    ) -> None:
        self._control = control
        self._clock = clock
        self._holder = holder
        self._ttl = ttl
        self._longest = longest
        self._interval = ttl / 3
        self._limit = limit
        self._claims: dict[str, _Claim] = {}
        self._drops: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._failing = False

    def __len__(self) -> int:
        return len(self._claims)

    def claim(self, lease: str, fencing_token: int, *, turn: str) -> None:
        """Claims a lease for one more turn. Returns at once."""
        until = self._clock.now() + self._longest
        claim = self._claims.get(lease)
        if claim is not None:
            claim.turns[turn] = until
            if fencing_token > claim.fencing_token:
                claim.fencing_token, claim.due = fencing_token, True
                self._wake.set()
            return
        if len(self._claims) >= self._limit:
            _log.warning("lease of a turn in flight is not claimed: %d are", self._limit)
            return
        self._drops.pop(lease, None)
        self._claims[lease] = _Claim(fencing_token, {turn: until})
        self._wake.set()

    def drop(self, lease: str, *, turn: str) -> None:
        """Gives up a turn's claim; the last one's is dropped at the manager.

        Returns at once. Does nothing if the turn has no claim (any more).
        """
        claim = self._claims.get(lease)
        if claim is None or claim.turns.pop(turn, None) is None or claim.turns:
            return
        del self._claims[lease]
        if len(self._drops) < self._limit:
            self._drops[lease] = claim.fencing_token
            self._wake.set()

    async def run(self) -> None:
        """Sends claims as they come, and repeats them, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat())
            tasks.create_task(self._send_when_due())

    async def _repeat(self) -> None:
        while True:
            await self._clock.sleep(self._interval)
            self._drop_overdue()
            for claim in self._claims.values():
                claim.due = True
            self._wake.set()

    def _drop_overdue(self) -> None:
        now = self._clock.now()
        overdue = [
            (lease, turn)
            for lease, claim in self._claims.items()
            for turn, until in claim.turns.items()
            if until <= now
        ]
        for lease, turn in overdue:
            _log.debug("the turn of decision %s no longer claims %s", turn, lease)
            self.drop(lease, turn=turn)

    async def _send_when_due(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for batch in self._batches():
                await self._send(batch)

    def _batches(self) -> list[Mapping[str, LeaseRenewal]]:
        renewals = {
            lease: LeaseRenewal(lease=lease, fencing_token=token, drop=True)
            for lease, token in self._drops.items()
        }
        renewals |= {
            lease: LeaseRenewal(lease=lease, fencing_token=claim.fencing_token, ttl=self._ttl)
            for lease, claim in self._claims.items()
            if claim.due
        }
        leases = list(renewals)
        return [
            {lease: renewals[lease] for lease in leases[start : start + MAX_RENEWALS]}
            for start in range(0, len(leases), MAX_RENEWALS)
        ]

    async def _send(self, batch: Mapping[str, LeaseRenewal]) -> None:
        renewals = tuple(batch.values())
        try:
            outcomes = await self._control.renew(self._holder, renewals)
        except KvplaneError as error:
            # They stay due: the next repeat, or the next claim, takes them along.
            if not self._failing:
                _log.warning("leases of turns in flight cannot be claimed: %s", error.message)
            self._failing = True
            return
        if self._failing:
            _log.info("leases of turns in flight are claimed again")
        self._failing = False
        self._settle(renewals, outcomes)

    def _settle(self, renewals: Sequence[LeaseRenewal], outcomes: Sequence[RenewalOutcome]) -> None:
        for renewal, outcome in zip(renewals, outcomes, strict=True):
            if outcome is RenewalOutcome.UNAVAILABLE:
                continue
            if renewal.drop:
                self._drops.pop(renewal.lease, None)
                continue
            claim = self._claims.get(renewal.lease)
            if claim is None or claim.fencing_token != renewal.fencing_token:
                continue
            claim.due = False
            if outcome is not RenewalOutcome.RENEWED:
                # Over: repeating it is in vain. Its turns may still end in any order.
                del self._claims[renewal.lease]
                _log.debug("%s is over (%s): its claim is given up", renewal.lease, outcome.value)
