"""`make interleavings`: many random rounds of releases against reads, on real vLLM engines.

    .venv/bin/python -m tests.interleavings --rounds 1000 --json FILE

Half of the rounds go by cma, half by tcp alone, with validation. As many again as `--trusting` says
go with engines that use what words refuse: some of their answers have to be wrong, or the rounds
would not show anything, and each of those has to have been refused.
"""

import argparse
import dataclasses
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvplane_services.local.engines import EnginePair, prefill_and_decode
from kvplane_services.local.vllm_command import EngineOptions
from tests.support.interleavings import (
    DECODE_BLOCKS,
    MAX_TOKENS,
    Interleavings,
    Tally,
    random_plan,
)
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import IMPORT_PATHS, ROOT, started, tiny_model

_TRANSPORTS = {"cma": "tcp,posix,sysv,self,cma", "tcp": "tcp,self"}
# Reads that nobody disturbs, for what a validation takes.
_UNDISTURBED = 200
_BLOCKS = {"prefill": 600, "decode": DECODE_BLOCKS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and writes what came of the rounds; 1 if an answer was wrong that must not be."""
    parser = argparse.ArgumentParser(prog="interleavings", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="with validation")
    parser.add_argument("--trusting", type=int, help="without; a fifth of the others by default")
    parser.add_argument("--transport", choices=[*_TRANSPORTS], help="only this one")
    parser.add_argument("--seed", type=int, help="of the dice")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    names = [asked.transport] if asked.transport else [*_TRANSPORTS]
    trusting = asked.rounds // 5 if asked.trusting is None else asked.trusting
    seed = random.randrange(1 << 32) if asked.seed is None else asked.seed
    dice = random.Random(seed)
    found: dict[str, Any] = {"seed": seed}
    for name in names:
        print(f"{name}: {asked.rounds // len(names)} rounds", flush=True)
        found[name] = _measured(name, asked.rounds // len(names), trusting // len(names), dice)
    print(json.dumps(found, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return _judge([found[name] for name in names])


def _measured(name: str, rounds: int, trusting: int, dice: random.Random) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kvplane-interleavings-") as place:
        folder = Path(place)
        plane = RecordingPlane(lease_ttl=60.0, heartbeat_interval=0.02)
        plane.renews = lambda _: False
        plane.start()
        reads = folder / "reads"
        reads.mkdir()

        def amended(one: EngineOptions) -> EngineOptions:
            return dataclasses.replace(
                one,
                blocks=_BLOCKS[one.role],
                max_tokens=MAX_TOKENS,
                connector_module="held_reads",
                transports=_TRANSPORTS[name],
                extra_config={"held_reads": str(reads), "kv_lease_duration": 6},
            )

        options = prefill_and_decode(model_dir=tiny_model(folder), plane=plane.target)
        paths = (*IMPORT_PATHS, ROOT / "tests" / "support" / "in_engines")
        try:
            with started(
                [amended(one) for one in options], folder / "logs", import_paths=paths
            ) as (prefill, decode):
                game = Interleavings(EnginePair(prefill, decode), plane, reads)
                plans = [random_plan(dice) for _ in range(rounds)]
                took = game.validate(_UNDISTURBED)
                told = game.run(plans, trusting=False, progress=_say)
                plans = [random_plan(dice) for _ in range(trusting)]
                untold = game.run(plans, trusting=True, progress=_say)
        finally:
            plane.stop()
    return {
        "validation_us": _spread(took),
        "validated": _figures(told),
        "trusting": _figures(untold),
    }


def _say(tally: Tally) -> None:
    if tally.rounds % 50 == 0:
        print(f"  {tally.rounds}: {dict(tally.verdicts)}, {tally.wrong} wrong", flush=True)


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "rounds": tally.rounds,
        "verdicts": dict(tally.verdicts),
        "wrong": tally.wrong,
        "wrong_but_accepted": tally.wrong_but_accepted,
        "median_seconds": {
            verdict: round(statistics.median(times), 4) for verdict, times in tally.seconds.items()
        },
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    parts = statistics.quantiles(seconds, n=100)
    return {
        name: round(value * 1e6, 1)
        for name, value in (("median", parts[49]), ("p90", parts[89]), ("p99", parts[98]))
    } | {"reads": len(seconds)}


def _judge(found: Sequence[dict[str, Any]]) -> int:
    if any(one["validated"]["wrong"] or one["trusting"]["wrong_but_accepted"] for one in found):
        print("interleavings: an answer is wrong whose read was not refused", file=sys.stderr)
        return 1
    blind = [one for one in found if one["trusting"]["rounds"] and not one["trusting"]["wrong"]]
    if blind:
        print("interleavings: no answer is wrong without validation: more rounds", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
