"""Retentions of engines with the stock connector, which report nothing.

A gateway saw in an answer what the engine keeps; the lease on it is asked for here, in the
background. And before such a retention is read, the one read that it has is taken: the only remote
call that a decision waits for, and only where an operator trusts the history of such an engine.
"""

import asyncio
import json
import logging
import uuid
from dataclasses import dataclass
from typing import Any

from kvplane_services.clock import Clock, jittered, within
from kvplane_services.errors import KvplaneError, Unavailable
from kvplane_services.lease.model import Handle, Lease
from kvplane_services.lease.ports import FixedLeaseControl
from kvplane_services.router.model import Decision, KeptTurn
from kvplane_services.router.remembered import Remembered
from kvplane_services.session.model import SessionKey

_log = logging.getLogger(__name__)

_WORKERS = 4
_MOST_WAITING = 10_000
_ATTEMPTS = 3
_PAUSE = 0.5
# What a decision waits at most for the read to be given out, in seconds.
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class _Turn:
    engine: str
    epoch: int
    session_key: SessionKey
    message_digest: bytes
    until: float


class FixedRetentions:
    """Gets leases on what stock engines keep, and the reads of it.

    Args:
        control: The lease manager.
        clock: Time.
        limit: Turns remembered until their answers tell what is kept.

    """

    def __init__(self, *, control: FixedLeaseControl, clock: Clock, limit: int) -> None:
        self._control = control
        self._clock = clock
        self._turns: Remembered[str, _Turn] = Remembered(limit)
        self._waiting: asyncio.Queue[tuple[Lease, float]] = asyncio.Queue(_MOST_WAITING)

    def begin(self, decision: Decision, *, message_digest: bytes) -> None:
        """Notes a turn whose decode engine keeps it, if that is a stock engine."""
        leg = decision.decode
        if leg.fixed_retention is not None:
            self._turns.put(
                decision.decision_id,
                _Turn(
                    engine=leg.engine,
                    epoch=leg.epoch,
                    session_key=decision.session_key,
                    message_digest=message_digest,
                    until=self._clock.now() + leg.fixed_retention.ttl,
                ),
            )

    def end(self, decision_id: str, kept: KeptTurn | None) -> bool:
        """Asks for the lease on what a turn's answer said is kept; False if there is none.

        Returns at once. The TTL counts from the decision: the engine's began when it ended the
        turn, and how long ago that is nobody tells. A slow reader can have held up the end
        of the answer for any time.
        """
        turn = self._turns.forget(decision_id)
        lease = _lease(turn, decision_id, kept) if turn and kept else None
        if turn is None or lease is None:
            return False
        try:
            self._waiting.put_nowait((lease, turn.until))
        except asyncio.QueueFull:
            _log.warning("a retention of %s is not leased: too many wait", turn.engine)
            return False
        return True

    async def consume(self, lease: Lease) -> str | None:
        """Takes the one read of a lease's retention; why it is not to be had, or None."""
        asked = self._control.consume(lease.name, lease.fencing_token)
        try:
            await within(asked, _PATIENCE, clock=self._clock)
        except KvplaneError as error:
            return error.message
        except TimeoutError:
            return f"the lease manager did not give out the read of {lease.name} in time"
        return None

    async def run(self) -> None:
        """Asks for leases, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_WORKERS):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            lease, until = await self._waiting.get()
            await self._grant(lease, until)

    async def _grant(self, lease: Lease, until: float) -> None:
        request_id = str(uuid.uuid4())
        for left in reversed(range(_ATTEMPTS)):
            ttl = until - self._clock.now()
            if ttl <= 0:
                return
            try:
                await self._control.lease_fixed(lease, ttl=ttl, request_id=request_id)
            except Unavailable as error:
                if left:
                    await self._clock.sleep(jittered(_PAUSE))
                    continue
                _log.warning("a retention of %s is not leased: %s", lease.engine, error.message)
            except KvplaneError as error:
                _log.warning("a retention of %s is not leased: %s", lease.engine, error.message)
            return


def _lease(turn: _Turn, decision_id: str, kept: KeptTurn) -> Lease | None:
    """The lease to ask for; None if the handle is not one of vLLM's, or names nothing kept."""
    params = _params(kept.handle)
    retention_id, tokens = params.get("remote_request_id"), params.get("remote_num_tokens")
    blocks = _count(params.get("remote_block_ids"))
    if not params.get("do_remote_decode") or not isinstance(retention_id, str):
        return None
    if not isinstance(tokens, int) or tokens < 1 or blocks < 1:
        return None
    return Lease(
        lease_id="",
        session_key=turn.session_key,
        engine_id=turn.engine.removeprefix("engines/"),
        engine_epoch=turn.epoch,
        retention_id=retention_id,
        fencing_token=0,
        tokens=tokens,
        blocks=blocks,
        handle=Handle(kept.handle),
        decision_id=decision_id,
        message_digest=turn.message_digest,
        history_digest=kept.history_digest,
    )


def _params(handle: bytes) -> dict[str, Any]:
    try:
        params = json.loads(handle)
    except (ValueError, RecursionError):
        return {}
    return params if isinstance(params, dict) else {}


def _count(groups: object) -> int:
    """Blocks of all KV cache groups."""
    if not isinstance(groups, list):
        return 0
    return sum(len(group) for group in groups if isinstance(group, list))
