"""Numbers that only grow, drawn from a counter in etcd by compare-and-set."""

import asyncio
import logging
from dataclasses import dataclass

from kvplane_services.adapters.etcd.backend import Compare, EtcdBackend, PutOp
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.clock import Clock
from kvplane_services.errors import Unavailable

_log = logging.getLogger(__name__)

_MICROSECONDS = 1_000_000
# So often in a row can others be quicker only where something is wrong.
_ATTEMPTS = 100


@dataclass(slots=True, eq=False)
class _Draw:
    count: int
    first: int = 0
    failure: Unavailable | None = None
    given_up: bool = False

    @property
    def done(self) -> bool:
        return bool(self.first) or self.failure is not None


class EtcdSequence:
    """See `kvplane_services.store.ports.Sequence`.

    The counter is at least the wall clock's microseconds, and what this process drew before, so
    that numbers grow over a loss of etcd's data. Calls at the same time share one write.

    Not promised: that they grow over such a loss between processes whose clocks differ by more
    than the time since the larger number was drawn.
    """

    def __init__(self, *, key: bytes, backend: EtcdBackend, contact: Contact, clock: Clock) -> None:
        self._key = key
        self._backend = backend
        self._contact = contact
        self._clock = clock
        # The counter and its revision as last seen, and the last number drawn here.
        self._stored = 0
        self._revision = 0
        self._last = 0
        self._waiting: list[_Draw] = []
        # One write at a time; whoever has it draws for all that wait.
        self._writing = asyncio.Lock()

    async def next(self, count: int = 1) -> int:
        """See `Sequence.next`."""
        draw = _Draw(count)
        self._waiting.append(draw)
        try:
            async with self._writing:
                if not draw.done:
                    await self._draw_for_all()
        except BaseException:
            draw.given_up = True
            raise
        if draw.failure is not None:
            failure = draw.failure
            raise Unavailable(failure.message, retry_after=failure.retry_after) from failure
        return draw.first

    async def _draw_for_all(self) -> None:
        draws = [draw for draw in self._waiting if not draw.given_up]
        self._waiting.clear()
        try:
            first = await self._reserve(sum(draw.count for draw in draws))
        except Unavailable as error:
            # Each of them would wait as long, one after the other.
            for draw in draws:
                draw.failure = error
            return
        except BaseException:
            # This call was cancelled, not the others that it draws for.
            self._waiting[:0] = draws
            raise
        for draw in draws:
            draw.first = first
            first += draw.count

    async def _reserve(self, count: int) -> int:
        for _ in range(_ATTEMPTS):
            wall = int(self._clock.wall().timestamp() * _MICROSECONDS)
            first = max(self._stored + 1, self._last + 1, wall)
            last = first + count - 1
            result = await self._contact.ask(
                self._backend.txn(
                    [Compare(self._key, self._revision)], [PutOp(self._key, str(last).encode())]
                )
            )
            if result.succeeded:
                self._stored = self._last = last
                self._revision = result.header.revision
                return first
            self._stored, self._revision = 0, 0
            for found in result.found:
                self._stored = self._parse(found.value)
                self._revision = found.mod_revision
        raise Unavailable("too many processes draw numbers at once", retry_after=0.1)

    def _parse(self, value: bytes) -> int:
        try:
            return int(value)
        except ValueError:
            _log.warning("%r in etcd holds no number: it starts from the time of day", self._key)
            return 0
