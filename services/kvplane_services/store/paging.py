"""Pages of a listing, with opaque tokens."""

import base64
import binascii
import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvplane_services.errors import InvalidRequest

T = TypeVar("T")
U = TypeVar("U")

_DEFAULT_SIZE = 100
_MAX_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a listing; `next_token` is empty on the last page."""

    items: tuple[T, ...]
    next_token: str
    revision: int

    def map(self, show: Callable[[T], U]) -> "Page[U]":
        """The page with every item replaced by what `show` makes of it."""
        return Page(tuple(show(item) for item in self.items), self.next_token, self.revision)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page: at most `size` items (0: 100), after the page that gave `token`."""

    size: int = 0
    token: str = ""

    def take(
        self,
        items: Iterable[T],
        *,
        key: Callable[[T], str],
        filters: Sequence[str],
        revision: int,
    ) -> Page[T]:
        """The page of `items`, which the filters have passed, in the order of their keys.

        A listing that changes between pages shows each item that was there throughout once.

        Args:
            items: What is listed.
            key: Unique and stable name of an item.
            filters: What was asked for besides the page; a token is good for these only.
            revision: Revision that `items` were read at.

        Raises:
            InvalidRequest: The size is out of bounds or the token is not one of this listing.

        """
        if not 0 <= self.size <= _MAX_SIZE:
            raise InvalidRequest(
                f"page_size is {self.size}; ask for 1 to {_MAX_SIZE}, or 0 for {_DEFAULT_SIZE}",
                field="page_size",
            )
        size = self.size or _DEFAULT_SIZE
        start = _decode(self.token, filters) if self.token else ""
        following = (item for item in items if key(item) > start)
        found = heapq.nsmallest(size + 1, following, key=key)
        taken = tuple(found[:size])
        token = _encode(key(taken[-1]), filters) if len(found) > size else ""
        return Page(taken, token, revision)


def _encode(last: str, filters: Sequence[str]) -> str:
    text = json.dumps([last, *filters], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def _decode(token: str, filters: Sequence[str]) -> str:
    try:
        decoded = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (binascii.Error, ValueError, RecursionError):
        decoded = None
    match decoded:
        case [str(last), *asked] if asked == list(filters):
            return last
        case _:
            raise InvalidRequest(
                "page_token is not from this listing: repeat the request that gave it with the "
                "same filters, or start again without it",
                field="page_token",
            )
