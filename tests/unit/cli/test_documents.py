"""What the documents tell operators to type."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kvplane_services.cli.main import create_app

ROOT = Path(__file__).parents[3]
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> Iterator[str]:
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in SHELL.findall(document.read_text(encoding="utf-8")):
            yield from (line for line in block.splitlines() if line.startswith("kvplane "))


@pytest.mark.parametrize("command", tuple(commands()))
def test_documented_command_is_understood(command: str) -> None:
    """Every `kvplane` line of a document names a command and options that there are."""
    _, *words = shlex.split(command, comments=True)
    group: Any = typer.main.get_command(create_app())
    context = None
    while True:
        context = group.make_context(group.name, list(words), parent=context)
        if not hasattr(group, "resolve_command"):
            return
        _, group, words = group.resolve_command(context, [*context._protected_args, *context.args])
