"""Names that are both a process and a thing to ask about: `kvplane leases`.

Alone, or with options first, `kvplane leases` runs the lease manager's process; followed by
a sub-command, it asks a running one.
"""

from typing import Any

import typer
from typer.core import TyperGroup

_PROCESS = "serve"


class _RunsAlone(TyperGroup):
    """Takes its sub-command `serve` where none is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the sub-command in front of options that are not the group's own."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [_PROCESS, *args]
        return super().parse_args(ctx, args)


def fold_processes(app: typer.Typer) -> None:
    """Makes each command that has a group of the same name the group's `serve`."""
    groups = {info.name: info for info in app.registered_groups}
    for command in list(app.registered_commands):
        callback = getattr(command.callback, "__name__", "")
        group = groups.get(command.name or callback)
        if group is None or group.typer_instance is None:
            continue
        app.registered_commands.remove(command)
        command.name = _PROCESS
        group.typer_instance.registered_commands.insert(0, command)
        group.typer_instance.info.cls = _RunsAlone
        group.typer_instance.info.no_args_is_help = False
