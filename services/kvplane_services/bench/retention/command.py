"""Runs the study from the command line: progress on stderr, a table, and a document."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.retention.study import StudyOptions, run_study
from kvplane_services.bench.retention.synthetic import synthetic_trace
from kvplane_services.bench.retention.trace import read_trace


def run_retention(
    options: StudyOptions, *, trace: Path | None, seed: int, json_file: Path | None
) -> int:
    """Returns the exit code: 1 if there is no usable trace, or nowhere to write."""
    errors = Console(stderr=True)
    try:
        turns = read_trace(trace) if trace is not None else synthetic_trace(seed)
        document = run_study(turns, options, say=errors.print)
        document["trace"] = trace.name if trace is not None else f"synthetic, seed {seed}"
        if json_file is not None:
            json_file.write_text(json.dumps(document, indent=2) + "\n")
    except (BenchError, OSError) as error:
        errors.print(f"kvplane: {error}")
        return 1
    table = Table("rule", "capacity", "saved", "beside prefill cache", "makespan", "wait p99")
    for run in document["runs"]:
        table.add_row(
            run["rule"],
            f"{run['capacity_percent']:g} %",
            f"{run['saved_percent']:.1f} %",
            f"{run['saved_beside_prefill_cache_percent']:.1f} %",
            f"{run['makespan_ratio']:.3f}",
            f"{run['wait_p99_s']:.1f} s",
        )
    Console().print(table)
    return 0
