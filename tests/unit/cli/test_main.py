"""How the commands are put together."""

from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from kvplane_services.cli.main import create_app
from kvplane_services.cli.shared_names import fold_processes
from kvplane_services.errors import InvalidRequest

runner = CliRunner()


def test_version_is_the_packages() -> None:
    """`--version` prints name and version, and nothing runs."""
    result = runner.invoke(create_app(), ["--version"])
    assert (result.exit_code, result.output) == (0, f"kvplane {version('kvplane')}\n")


@pytest.mark.parametrize("group", ["engines", "leases", "sessions"])
def test_operators_commands_are_there(group: str) -> None:
    """Each group explains itself."""
    result = runner.invoke(create_app(), [group, "--help"])
    assert result.exit_code == 0
    assert "list" in result.output


def test_leases_says_that_it_is_a_process_too() -> None:
    """Whoever looks for the lease manager finds it, and where its options are listed."""
    app = create_app()
    commands = runner.invoke(app, ["--help"]).output
    [line] = [line for line in commands.splitlines() if line.startswith("  leases ")]
    assert "run the lease manager" in line
    assert "kvplane leases serve --help" in runner.invoke(app, ["leases", "--help"]).output
    assert "--grpc" in runner.invoke(app, ["leases", "serve", "--help"]).output


@pytest.mark.parametrize("command", ["up", "gateway", "sim-engine", "explain", "bench scale"])
def test_options_are_not_cut(command: str) -> None:
    """Names of options are whole in `--help`, also where the terminal has 80 columns."""
    shown = runner.invoke(create_app(), [*command.split(), "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert "…" not in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80


def test_expected_errors_are_one_line_and_an_exit_code() -> None:
    """A command that raises a KvplaneError ends with its message on stderr and code 1."""
    app = create_app()

    @app.command()
    def fail() -> None:
        raise InvalidRequest("give a role")

    result = runner.invoke(app, ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "kvplane: give a role\n")


def test_bugs_are_not_hidden() -> None:
    """An error that nobody expected leaves with its traceback."""
    app = create_app()

    @app.command()
    def fail() -> None:
        raise KeyError("bug")

    result = runner.invoke(app, ["fail"])
    assert isinstance(result.exception, KeyError)


@pytest.mark.parametrize(
    ("args", "output"),
    [
        (["things"], "runs on 1\n"),
        (["things", "--port", "2"], "runs on 2\n"),
        (["things", "serve", "--port", "3"], "runs on 3\n"),
        (["things", "list"], "listed\n"),
    ],
)
def test_a_name_can_be_a_process_and_a_group(args: list[str], output: str) -> None:
    """Alone or with options it runs; with a sub-command it asks."""
    app, group = typer.Typer(), typer.Typer()

    @app.command()
    def things(port: int = 1) -> None:
        typer.echo(f"runs on {port}")

    @app.command()
    def other() -> None:
        raise AssertionError

    @group.command("list")
    def list_things() -> None:
        typer.echo("listed")

    app.add_typer(group, name="things")
    fold_processes(app)
    result = runner.invoke(app, args)
    assert (result.exit_code, result.output) == (0, output)


def test_help_of_a_shared_name_shows_both() -> None:
    """`--help` is the group's, and lists the process among the sub-commands."""
    result = runner.invoke(create_app(), ["leases", "--help"])
    assert result.exit_code == 0
    for command in ("serve", "list", "get", "release", "watch"):
        assert command in result.output


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["engines", "list", "--plane", "nowhere"], "expected host:port"),
        (["engines", "list", "--role", "worker"], "'prefill', 'decode', 'both'"),
        (["sessions", "touch", "a:b:c:d", "--for", "soon"], "is not a duration"),
        (["sessions", "get", "just-an-id"], "give --model"),
        (["explain"], "--model"),
    ],
)
def test_wrong_usage_says_what_is_right(args: list[str], part: str) -> None:
    """Wrong usage exits with 2 and says what is expected; no plane is needed to tell."""
    result = runner.invoke(create_app(), args, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert result.exit_code == 2
    assert part in result.output
