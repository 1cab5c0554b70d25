"""What stores hold and are asked: versioned values, their changes, and what watches tell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableSpec(Generic[T]):
    """A kind of value, and how it is written down.

    Attributes:
        name: Name of the table: lower-case letters.
        kind: Class of the values.
        encode: A value as bytes; the same value always gives the same bytes.
        decode: Raises ValueError on bytes that are no such value.

    """

    name: str
    kind: type[T]
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A value and the store revision of its last write."""

    key: str
    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[T]):
    """All values of a table, by key, and the revision that they were read at."""

    items: tuple[Versioned[T], ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Upserted(Generic[T]):
    """A value was written."""

    key: str
    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A value is gone: deleted, or its anchor lapsed."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything up to `revision` was delivered: the initial state is complete, or a bookmark."""

    revision: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The source starts over with its full state: drop what is not seen again before Synced."""


Event = Upserted[T] | Removed | Synced | Reset


@dataclass(frozen=True, slots=True)
class Put(Generic[T]):
    """Write a value.

    Attributes:
        key: Where.
        value: What.
        expected: Revision that the value must have; 0 if it must not exist; None for any. A
            value that is there already, exactly as it is to be written and on the same anchor,
            is as expected: an attempt whose answer was lost may have written it. So what must
            tell whose write succeeded, as in taking something over, carries its writer's name.
        anchor: What the value hangs on, see `Anchors`; empty for a value that stays.

    """

    key: str
    value: T
    expected: int | None = None
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a value; `expected` as for `Put`. That there is none is always as expected."""

    key: str
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """Only while `key` of the table of that name has this revision; 0 while it is not there."""

    table: str
    key: str
    revision: int
