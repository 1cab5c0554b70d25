"""Simulated engines as processes, for tests."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import Program

# As fast as it goes without losing the order of things.
FAST = ("--prefill-tokens-per-s", "200000", "--decode-ms-per-token", "1", "--transfer-ms", "1")


@dataclass(frozen=True, slots=True)
class SimProcess:
    """A running simulated engine."""

    name: str
    url: str
    program: Program


@dataclass(frozen=True, slots=True)
class SimPair:
    """One prefill and one decode engine."""

    prefill: SimProcess
    decode: SimProcess


def start_sim(
    role: str, *, plane: str, folder: Path, name: str = "", options: tuple[str, ...] = ()
) -> SimProcess:
    """Starts an engine on free ports, and waits until it serves."""
    name = name or f"{role}-0"
    program = Program(
        *("sim-engine", "--role", role, "--http", "127.0.0.1:0", "--plane", plane),
        *("--engine-id", name, *FAST, *options),
        log=folder / f"{name}.log",
    )
    return SimProcess(name, program.wait_for(r"ready on (http://\S+)"), program)
