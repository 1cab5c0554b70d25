"""`kvplane`: the entry point. Puts the commands together and turns errors into one line each.

Each module named in `_COMMANDS` has `register(app: typer.Typer) -> None`. Modules import
at their top only what is cheap, and the rest inside their commands, so that `--help` is fast
and works without the optional extras.
"""

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvplane_services.cli.failures import describe
from kvplane_services.cli.shared_names import fold_processes

# In the order of --help.
_COMMANDS = (
    "serve",
    "gateway",
    "engines",
    "leases",
    "sessions",
    "explain",
    "sim",
    "demo",
    "bench",
)


class _OneLineErrors(TyperGroup):
    """Ends a command that failed for a known reason with one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            failure = describe(error)
            if failure is None:
                raise
            print(f"kvplane: {failure.line}", file=sys.stderr)
            raise typer.Exit(failure.exit_code) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"kvplane {version('kvplane')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Keeps the KV cache of conversations usable across turns, for prefill/decode vLLM.

    `kvplane up` starts everything in one process; point OpenAI clients at it. The commands
    `engines`, `leases`, `sessions` and `explain` ask a running plane.
    """


def create_app() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="kvplane",
        cls=_OneLineErrors,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Not in columns, which cut the names of options where a terminal has 80 of them.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    package = __name__.rpartition(".")[0]
    for name in _COMMANDS:
        importlib.import_module(f"{package}.{name}").register(app)
    fold_processes(app)
    return app


def main() -> None:
    """Runs the command line; exits with 0, 1 (failed), 2 (wrong usage) or 130 (interrupted)."""
    # gRPC's library writes lines of its own, in its own form, beside those of ours that say the
    # same. It looks when it is loaded; whoever wants to see them sets this.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    create_app()()
