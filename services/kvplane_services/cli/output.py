"""How answers look: tables for people, the protobuf JSON mapping for programs."""

import enum
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from kvplane_services.cli.durations import show_duration
from kvplane_services.clock import Clock

# No table is as wide: where nobody looks at a terminal, nothing is cut or wrapped.
_UNBOUNDED = 100_000


class Output(enum.StrEnum):
    """What --output takes."""

    TABLE = "table"
    JSON = "json"


def print_json(message: Message) -> None:
    """One message, with every field that has no presence, so that scripts find all keys."""
    print(json.dumps(_as_dict(message), indent=2, ensure_ascii=False))


def print_json_list(key: str, messages: Iterable[Message]) -> None:
    """Messages under one key, as the services' List answers have them."""
    answer = {key: [_as_dict(message) for message in messages]}
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def print_json_line(message: Message) -> None:
    """One message on one line, for streams."""
    print(json.dumps(_as_dict(message), ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table; `empty` is said where there are no rows.

    In a terminal, long cells are folded to fit. Elsewhere nothing is cut and nothing is drawn
    around the cells, so that other programs can read each row from one line.
    """
    # Rich takes longer to import than a call takes; `--output json` goes without.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = list(rows)
    if not found:
        print(empty, file=sys.stderr)
        return
    terminal = sys.stdout.isatty()
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not terminal)
    for row in found:
        # As Text: brackets in names are not markup.
        table.add_row(*(Text(cell or "-") for cell in row))
    width = shutil.get_terminal_size().columns if terminal else _UNBOUNDED
    Console(width=width, highlight=False).print(table)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair a line; empty values are left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}")


def enum_text(kind: Any, value: int) -> str:
    """An enum's value without its prefix, in lower case; a number if this version lacks it.

    Args:
        kind: The generated enum, for example `engine_pb2.Role`.
        value: One of its values.

    """
    descriptor = kind.DESCRIPTOR
    known = descriptor.values_by_number.get(value)
    if known is None:
        return str(value)
    zero: str = descriptor.values_by_number[0].name
    name: str = known.name
    return name.removeprefix(zero.removesuffix("UNSPECIFIED")).lower()


def duration_text(duration: Duration) -> str:
    """A duration for people."""
    return show_duration(duration.ToNanoseconds() / 1e9)


def until_text(moment: Timestamp, *, clock: Clock) -> str:
    """How long until a moment, or since; by this machine's clock, so only roughly."""
    if not moment.ToNanoseconds():
        return ""
    seconds = moment.ToNanoseconds() / 1e9 - clock.wall().timestamp()
    return f"in {show_duration(seconds)}" if seconds >= 0 else f"{show_duration(-seconds)} ago"


def _as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, always_print_fields_with_no_presence=True)
