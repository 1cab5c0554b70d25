"""`kvplane bench scale`: how a plane does with many sessions.

The plane is real, one `kvplane up` for each replica, and so is etcd. Engines are simulated here
and speak the contract: they report a retention when a turn finishes, confirm what they are told
to give up, and heartbeat as often as they are asked to.
"""

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvplane_services.bench.etcd_server import EtcdServer, borrowed_etcd, private_etcd
from kvplane_services.bench.figures import Spread, percentile, rates, rounded
from kvplane_services.bench.fleet import Fleet
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.planes import PlaneProcess, running_plane
from kvplane_services.bench.watch_lag import lag_probe
from kvplane_services.bench.workload import Workload
from kvplane_services.clock import Clock
from kvplane_services.main.process import background

Progress = Callable[[str], None]

AIMS = {
    "grants_per_s": "2,000",
    "etcd_writes_per_renewal": "0",
    "bytes_per_session": "below 1,500",
}
# etcd's counts of what Raft agreed on: every write, those of its own included.
_WRITES = "etcd_server_proposals_committed_total"
_KEYS = "etcd_debugging_mvcc_keys_total"
_DB_SIZE = "etcd_mvcc_db_total_size_in_bytes"
_DB_USED = "etcd_mvcc_db_total_size_in_use_in_bytes"
# New retentions that one frame carries at most, as if so many turns finished meanwhile.
_BATCH = 4
# Part of the sessions that take another turn, and how many at most.
_SUPERSEDED_SHARE, _MOST_SUPERSEDED = 0.2, 20_000
# Spans of renewals that are measured at least, each as long as a lease goes between two.
_WINDOWS = 3
_LAG_RATE = 100.0
_BURSTS = 3
_SETTLED_AFTER = 1.0
_SECTION_TTL = 86_400


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What to measure.

    Attributes:
        sessions: Sessions, each with a lease.
        engines: Decode engines that hold them.
        store: "memory", "etcd" for one that is started here, or `etcd://...`.
        replicas: Processes of the plane.
        seconds: How long renewals and the watch are measured, each.
        tokens: Tokens of each session's history.
        lease_ttl: TTL of the leases, seconds; each is renewed every third of it.
        refresh: Whether handles say an expiry, and are reported again with each renewal.

    """

    sessions: int
    engines: int
    store: str = "etcd"
    replicas: int = 1
    seconds: float = 10.0
    tokens: int = 2048
    lease_ttl: float = 30.0
    refresh: bool = False


class _Run:
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
        began, renewed, writes = self._clock.now(), tally.renewed, await self._writes()
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
            self.figures["etcd_writes_per_renewal"] = (await self._writes() - writes) / count
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
            # A replica that has just started takes in what there is first.
            fleet.take_turn(0)
            await fleet.until(lambda: not probe.missing, what="the first lease at the watch")
            probe.lags.clear()
            turns = max(20, int(options.seconds * _LAG_RATE))
            for number in range(turns):
                fleet.take_turn((number + 1) % options.sessions)
                await self._clock.sleep(1 / _LAG_RATE)
            await fleet.until(lambda: not probe.missing, what="leases at the watch")
            fleet.on_sent = lambda _: None
        lags = [lag * 1000 for lag in probe.lags]
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            self.figures[f"watch_lag_ms_{name}"] = percentile(lags, share)
        self.figures["watch_lag_ms_max"] = max(lags)

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
        writes, since = await self._writes(), self._clock.now()
        while self._clock.now() - since < _SETTLED_AFTER:
            await self._clock.sleep(0.1)
            now = await self._writes()
            if now != writes:
                writes, since = now, self._clock.now()
        self._last_change = since

    async def _report_progress(self) -> None:
        while True:
            await self._clock.sleep(5.0)
            self._say(f"{self._fleet.tally.granted} of {self._options.sessions} leases granted")

    async def _writes(self) -> float:
        if self._etcd is None:
            return 0.0
        counters = await asyncio.to_thread(self._etcd.counters)
        return counters.get(_WRITES, 0.0)

    def _rss(self) -> float:
        return float(sum(plane.process.rss() for plane in self._planes))

    def _cpu(self) -> float:
        return sum(plane.process.cpu() for plane in self._planes)

    def _note(self, name: str, spread: Spread) -> None:
        self.figures[name] = spread.median
        self.spread[name] = spread


async def measure(
    options: ScaleOptions, *, log_dir: Path, say: Progress, clock: Clock
) -> dict[str, Any]:
    """Runs the benchmark; returns its document.

    Raises:
        BenchError: There is no etcd, or the plane did not do what it should.
        StartError: A process did not start.

    """
    workload = Workload(tokens=options.tokens)
    async with contextlib.AsyncExitStack() as stack:
        store, etcd = await stack.enter_async_context(
            _store(options.store, log_dir=log_dir, say=say, clock=clock)
        )

        async def plane(number: int) -> PlaneProcess:
            return await stack.enter_async_context(
                running_plane(
                    f"plane-{number}",
                    store=store,
                    settings=_settings(options),
                    log_dir=log_dir,
                    clock=clock,
                )
            )

        planes = [await plane(number) for number in range(options.replicas)]
        fleet = Fleet(
            replicas=[one.grpc for one in planes],
            engines=options.engines,
            sessions=options.sessions,
            workload=workload,
            refresh=options.refresh,
            clock=clock,
        )
        stack.push_async_callback(fleet.close)
        say(f"registering {options.engines} engines")
        await fleet.register()
        run = _Run(options, fleet=fleet, planes=planes, etcd=etcd, say=say, clock=clock)
        await stack.enter_async_context(background(*fleet.loops(batch=_BATCH)))
        say(f"granting {options.sessions} leases, handles of {workload.handle_bytes} bytes")
        await run.grants()
        say("renewing, and nothing else")
        await run.renewals()
        say("superseding leases")
        await run.supersedes()
        watched = planes[-1]
        if etcd is not None and len(planes) == 1:
            say("starting another replica, which watches")
            watched = await plane(1)
            run.figures["replica_start_s"] = watched.started_in
        say("timing grants until a watch shows them")
        await run.lag(watched.grpc)
        etcd_version = await asyncio.to_thread(etcd.version) if etcd is not None else ""
    return _document(options, run, workload=workload, etcd_version=etcd_version)


@contextlib.asynccontextmanager
async def _store(
    wanted: str, *, log_dir: Path, say: Progress, clock: Clock
) -> AsyncGenerator[tuple[str, EtcdServer | None]]:
    """What to give to `kvplane up --store`, and the etcd behind it."""
    if wanted == "memory":
        yield "", None
    elif wanted == "etcd":
        say("starting etcd")
        async with private_etcd(log_dir=log_dir, clock=clock) as server:
            yield f"etcd://{server.address}", server
    else:
        async with borrowed_etcd(wanted, clock=clock) as (url, server):
            yield url, server


def _settings(options: ScaleOptions) -> dict[str, str]:
    """The plane's settings: room for everything, and nothing is forgotten meanwhile."""
    return {
        "KVPLANE_LEASES__TTL": str(options.lease_ttl),
        "KVPLANE_LEASES__IDLE_KEEP": str(_SECTION_TTL),
        "KVPLANE_REGISTRATION__TTL": "120",
        "KVPLANE_SESSIONS__TTL": str(_SECTION_TTL),
        "KVPLANE_SESSIONS__MAX_SESSIONS": str(2 * options.sessions),
        "KVPLANE_STOP__DELAY": "0",
        "KVPLANE_LOG__LEVEL": "warning",
    }


def _document(
    options: ScaleOptions, run: _Run, *, workload: Workload, etcd_version: str
) -> dict[str, Any]:
    return {
        **{name: rounded(value) for name, value in run.figures.items()},
        "spread": {
            name: {
                "low": rounded(spread.low),
                "high": rounded(spread.high),
                "count": spread.count,
            }
            for name, spread in run.spread.items()
        },
        "load": {
            "sessions": options.sessions,
            "engines": options.engines,
            "replicas": options.replicas,
            "store": options.store.partition(":")[0],
            "history_tokens": options.tokens,
            "handle_bytes": workload.handle_bytes,
            "lease_ttl_s": options.lease_ttl,
            "retentions_per_frame": _BATCH,
            "handles_expire": options.refresh,
        },
        "machine": {"cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {
            "kvplane": version("kvplane"),
            "python": platform.python_version(),
            "grpcio": version("grpcio"),
            "protobuf": version("protobuf"),
            **({"etcd": etcd_version} if etcd_version else {}),
        },
    }
