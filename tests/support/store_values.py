"""Tables of text, for tests of stores."""

from kvplane_services.store.model import TableSpec


def texts(name: str = "texts") -> TableSpec[str]:
    """The spec of a table of text."""
    return TableSpec(name, str, str.encode, bytes.decode)


TEXTS = texts()
