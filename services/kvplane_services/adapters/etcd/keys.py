"""Where things are in etcd.

Under one prefix: `TABLE/KEY` for values, `sequences/NAME` for counters, and `history`, which is
written once when a store is set up. Keys of tables are escaped, so that any text is one, whatever
a terminal would make of it, and none reaches another's place.
"""

from urllib.parse import quote, unquote

# Beside letters, digits and `_.-~`: what ids are made of that means nothing here.
_PLAIN = ":@+=,"
_SEQUENCES = "sequences"


class KeySpace:
    """The keys under a prefix.

    Args:
        prefix: Of all of them; ends with a slash.

    """

    def __init__(self, prefix: str) -> None:
        if not prefix.endswith("/"):
            raise ValueError("a prefix of keys ends with a slash")
        self.prefix = prefix.encode()
        self.history = self.prefix + b"history"

    def value(self, table: str, key: str) -> bytes:
        """Where a table's value is."""
        return self.table(table) + _escape(key).encode()

    def table(self, table: str) -> bytes:
        """What the keys of a table begin with."""
        return self.prefix + table.encode() + b"/"

    def sequence(self, name: str) -> bytes:
        """Where a sequence is."""
        return self.table(_SEQUENCES) + name.encode()

    def is_own(self, where: bytes) -> bool:
        """Whether it is a place of the store itself, and no table's."""
        return where == self.history or where.startswith(self.table(_SEQUENCES))

    def parse(self, where: bytes) -> tuple[str, str] | None:
        """The table and key of a value's place; None for one that this class would not name."""
        try:
            table, slash, escaped = where.removeprefix(self.prefix).decode("ascii").partition("/")
        except UnicodeDecodeError:
            return None
        if not slash:
            return None
        if "%" not in escaped:
            return (table, escaped) if _escape(escaped) == escaped else None
        try:
            key = unquote(escaped, errors="surrogatepass")
        except UnicodeDecodeError:
            return None
        # Of all ways to write a key with escapes only one is its place.
        return (table, key) if _escape(key) == escaped else None


def _escape(key: str) -> str:
    # Lone halves of surrogate pairs are no characters, but any text is a key.
    return quote(key, safe=_PLAIN, errors="surrogatepass")
