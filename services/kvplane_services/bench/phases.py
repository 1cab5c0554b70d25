"""The benchmark, phase by phase."""

import asyncio

from kvplane_services.bench.etcd_server import EtcdServer
from kvplane_services.bench.figures import Spread, percentile, rates, rounded
from kvplane_services.bench.fleet import Fleet
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.options import ScaleOptions
from kvplane_services.bench.planes import PlaneProcess
from kvplane_services.bench.watch_lag import LagProbe, lag_probe
from kvplane_services.clock import Clock
from kvplane_services.local.errand import Progress
from kvplane_services.main.process import background

# etcd's counts of what Raft agreed on, everything of its own included, and of values written:
# one of the former can hold a hundred of the latter.
_WRITES = ("etcd_server_proposals_committed_total", "etcd_mvcc_put_total")
_DB_SIZE = "etcd_mvcc_db_total_size_in_bytes"
_DB_USED = "etcd_mvcc_db_total_size_in_use_in_bytes"
# Part of the sessions that take another turn, and how many at most.
_SUPERSEDED_SHARE, _MOST_SUPERSEDED = 0.2, 20_000
# Spans of renewals that are measured at least, each as long as a lease goes between two.
_WINDOWS = 3
_LAG_RATE = 50.0
# A replica has caught up when for so many seconds it shows each lease within so many seconds. While
# it takes in what there is it does not; how long that may take.
_PROMPT_FOR, _PROMPT, _CATCH_UP = 5.0, 0.25, 600.0
_BURSTS = 3
_SETTLED_AFTER = 1.0


class Phases:
    """One measurement, phase by phase; figures are collected in `figures` and `spread`."""

    def __init__(
        self,
        options: ScaleOptions,
        *,
        fleet: Fleet,
        planes: list[PlaneProcess],
        etcd: EtcdServer | None,
        say: Progress,
        clock: Clock,
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._planes = planes
        self._etcd = etcd
        self._say = say
        self._clock = clock
        self._last_change = 0.0
        self._told: set[str] = set()
        self.figures: dict[str, float] = {}
        self.spread: dict[str, Spread] = {}

    async def grants(self) -> None:
        """All sessions take their first turn, as fast as it goes."""
        options, fleet = self._options, self._fleet
        before, cpu = self._rss(), self._cpu()
        began = self._clock.now()
        fleet.take_turns(range(options.sessions))
        async with background(self._report_progress()):
            await fleet.until_granted(options.sessions)
        granted_at = self._clock.now()
        self._note("grants_per_s", rates(fleet.tally.grants, began=began, before=0))
        await self._settled()
        self.figures["cpu_s_per_1000_grants"] = (self._cpu() - cpu) / options.sessions * 1000
        self.figures["publish_delay_s"] = self._last_change - granted_at
        used = self._rss() - before
        self.figures["bytes_per_session"] = used / options.sessions
        self.figures["plane_rss_bytes"] = before + used
        if self._etcd is not None:
            counters = await asyncio.to_thread(self._etcd.counters)
            self.figures["etcd_db_bytes"] = counters.get(_DB_SIZE, 0.0)
            self.figures["etcd_db_in_use_bytes"] = counters.get(_DB_USED, 0.0)
            if self._etcd.process is not None:
                self.figures["etcd_rss_bytes"] = float(self._etcd.process.rss())

    async def renewals(self) -> None:
        """Nothing but renewals: first as they fall due, then all at once."""
        tally, interval = self._fleet.tally, self._options.lease_ttl / 3
        per_renewal: list[float] = []
        began, renewed, writes = self._clock.now(), tally.renewed, await self._all_writes()
        for _ in range(max(_WINDOWS, round(self._options.seconds / interval))):
            cpu, count = self._cpu(), tally.renewed
            # Leases that were granted together are renewed together.
            await self._clock.sleep(interval)
            if tally.renewed == count:
                raise BenchError(f"no lease was renewed within {interval:.0f} s")
            per_renewal.append((self._cpu() - cpu) / (tally.renewed - count) * 1000)
        count, took = tally.renewed - renewed, self._clock.now() - began
        self.figures["renewals_due_per_s"] = count / took
        self._note("cpu_s_per_1000_renewals", Spread.of(per_renewal))
        if self._etcd is not None:
            both = zip(await self._all_writes(), writes, strict=True)
            self.figures["etcd_writes_per_renewal"] = max(b - a for b, a in both) / count
        else:
            self.figures["etcd_writes_per_renewal"] = 0.0
        await self._bursts()

    async def supersedes(self) -> None:
        """A part of the sessions takes another turn, as fast as it goes."""
        fleet, sessions = self._fleet, self._options.sessions
        count = min(max(1, int(sessions * _SUPERSEDED_SHARE)), _MOST_SUPERSEDED)
        began, before = self._clock.now(), fleet.tally.released
        released_before = len(fleet.tally.releases)
        fleet.take_turns(range(count))
        await fleet.until(
            lambda: fleet.tally.released >= before + count, what=f"{count} superseded leases"
        )
        counts = fleet.tally.releases[released_before:]
        self._note("supersedes_per_s", rates(counts, began=began, before=before))
        await self._settled()

    async def lag(self, watched: str) -> None:
        """Turns finish one at a time while a watch at a replica waits for them."""
        fleet, options = self._fleet, self._options
        lease = next(engine.lease for engine in fleet.engines if engine.lease)
        async with lag_probe(watched, knows=lease, clock=self._clock) as probe:
            fleet.on_sent = probe.sent
            await self._caught_up(probe)
            probe.lags.clear()
            turns = max(20, int(options.seconds * _LAG_RATE))
            for number in range(turns):
                fleet.take_turn((number + 1) % options.sessions)
                await self._clock.sleep(1 / _LAG_RATE)
            await probe.seen_more(turns - 1)
            fleet.on_sent = lambda _: None
        lags = [lag * 1000 for lag in probe.lags]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            self.figures[f"watch_lag_ms_{name}"] = percentile(lags, share)
        self.figures["watch_lag_ms_max"] = max(lags)

    def tell(self) -> None:
        """Says the figures that were measured since the last call."""
        new = {name: value for name, value in self.figures.items() if name not in self._told}
        self._told.update(new)
        self._say(", ".join(f"{name} {rounded(value)}" for name, value in new.items()))

    async def _caught_up(self, probe: LagProbe) -> None:
        """Waits while a replica that has just started takes in what there is."""
        began = late = self._clock.now()
        while (now := self._clock.now()) - late < _PROMPT_FOR and now - began < _CATCH_UP:
            self._fleet.take_turn(0)
            await probe.seen_more(len(probe.lags))
            if probe.lags[-1] >= _PROMPT:
                late = self._clock.now()
        self.figures["replica_caught_up_s"] = late - began

    async def _bursts(self) -> None:
        """All leases fall due while engines are silent; then all engines speak at once."""
        fleet, sessions = self._fleet, self._options.sessions
        each: list[float] = []
        for _ in range(_BURSTS):
            fleet.gate.shut()
            await self._clock.sleep(self._options.lease_ttl / 3 + 0.5)
            began, before = self._clock.now(), fleet.tally.renewed
            fleet.gate.open()
            await fleet.until_renewed(before + sessions)
            each.append(sessions / (self._clock.now() - began))
        self._note("renewals_per_s", Spread.of(each))

    async def _settled(self) -> None:
        """Waits until etcd has everything: nothing is written any more."""
        writes, since = await self._all_writes(), self._clock.now()
        while self._clock.now() - since < _SETTLED_AFTER:
            await self._clock.sleep(0.1)
            now = await self._all_writes()
            if now != writes:
                writes, since = now, self._clock.now()
        self._last_change = since

    async def _report_progress(self) -> None:
        while True:
            await self._clock.sleep(5.0)
            self._say(f"{self._fleet.tally.granted} of {self._options.sessions} leases granted")

    async def _all_writes(self) -> tuple[float, ...]:
        if self._etcd is None:
            return (0.0,)
        counters = await asyncio.to_thread(self._etcd.counters)
        return tuple(counters.get(name, 0.0) for name in _WRITES)

    def _rss(self) -> float:
        return float(sum(plane.process.rss() for plane in self._planes))

    def _cpu(self) -> float:
        return sum(plane.process.cpu() for plane in self._planes)

    def _note(self, name: str, spread: Spread) -> None:
        self.figures[name] = spread.median
        self.spread[name] = spread
