"""What it costs to prove which tokens blocks hold, and to compare a prompt with the proof.

    python bench/digest.py [--tokens 32768] [--json FILE]

The owner makes the chain in its link's thread; the reader compares in vLLM's step loop, once per
request. Printed are the median and the 99th percentile, in milliseconds of CPU.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from kvplane.digest import Medium, chain_of, common_prefix, context_of

RUNS = 300


def main() -> None:
    """Prints a line per case; writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    random.seed(1)
    tokens = [random.randrange(150_000) for _ in range(arguments.tokens)]  # noqa: S311 - no secret
    edited = list(tokens)
    edited[len(tokens) * 3 // 5] += 1
    media = [Medium(place, 256, "a" * 64) for place in range(0, len(tokens), 512)]
    context = context_of()
    chain, with_media = chain_of(tokens, context), chain_of(tokens, context, media)
    cases: dict[str, Callable[[], object]] = {
        "prove": lambda: chain_of(tokens, context),
        "prove, an image every 512 tokens": lambda: chain_of(tokens, context, media),
        "compare, all the same": lambda: common_prefix(chain, tokens, context),
        "compare, one token differs": lambda: common_prefix(chain, edited, context),
        "compare, images all the same": lambda: common_prefix(with_media, tokens, context, media),
    }
    found = {name: spread(call) for name, call in cases.items()}
    for name, values in found.items():
        print(f"{name:34}", *(f"{key} {value:6.3f} ms" for key, value in values.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"tokens": arguments.tokens, "milliseconds": found}))


def spread(call: Callable[[], object]) -> dict[str, float]:
    """Median and 99th percentile of a call."""
    times: list[float] = []
    for _ in range(RUNS):
        start = time.thread_time()
        call()
        times.append((time.thread_time() - start) * 1e3)
    ordered = sorted(times)
    return {
        "median": round(statistics.median(ordered), 3),
        "p99": round(ordered[int(len(ordered) * 0.99)], 3),
    }


if __name__ == "__main__":
    main()
