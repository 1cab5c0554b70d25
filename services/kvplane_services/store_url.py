"""Names of stores: `memory`, `etcd://HOST:PORT,HOST:PORT`, `etcd3://HOST:PORT`."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl

from kvplane.client.addresses import normalize_target
from kvplane_services.errors import InvalidRequest


class StoreKind(enum.Enum):
    """What keeps the state."""

    MEMORY = "memory"
    ETCD = "etcd"
    ETCD3 = "etcd3"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Which store, where it is, and options by the names of the settings that they stand for."""

    kind: StoreKind
    endpoints: tuple[str, ...] = ()
    options: Mapping[str, str | Path] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a URL. Raises InvalidRequest."""
        if text == StoreKind.MEMORY.value:
            return cls(StoreKind.MEMORY)
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in (StoreKind.ETCD.value, StoreKind.ETCD3.value):
            if "@" in rest:
                text = f"{scheme}://..."
            raise _invalid(text, _WEB if scheme in _WEB_SCHEMES else _NAME_ONE)
        kind = StoreKind(scheme)
        addresses, _, query = rest.partition("?")
        if "@" in addresses:
            raise _invalid(
                f"{scheme}://...",
                "users and passwords do not belong there: set store.user, and "
                "KVPLANE_STORE__PASSWORD in the environment",
            )
        try:
            endpoints = tuple(
                normalize_target(address) for address in addresses.removesuffix("/").split(",")
            )
        except ValueError as error:
            raise _invalid(text, str(error)) from error
        if kind is StoreKind.ETCD3 and len(endpoints) > 1:
            raise _invalid(text, "etcd3 speaks to one address: name one, or use etcd://")
        return cls(kind, endpoints, _options(text, query))


_NAME_ONE = "name memory, etcd://HOST:PORT,HOST:PORT or etcd3://HOST:PORT as the store"
# What other clients of etcd call it.
_WEB_SCHEMES = ("http", "https", "etcds")
_WEB = "write etcd://HOST:PORT,HOST:PORT; with store.tls_ca it is encrypted, else it is not"


def check_prefix(prefix: str) -> str:
    """What all keys of a plane begin with. Raises ValueError if that is no way to begin."""
    if not prefix.startswith("/") or not prefix.endswith("/") or not prefix.strip("/"):
        raise ValueError(f"{prefix!r} is no prefix of keys: /kvplane/v1/ is one")
    return prefix


# What may follow a question mark; a password may not, since everybody sees command lines.
_OPTIONS: Mapping[str, Callable[[str], str | Path]] = {
    "prefix": check_prefix,
    "user": str,
    "tls_ca": Path,
    "tls_cert": Path,
    "tls_key": Path,
}


def _options(text: str, query: str) -> dict[str, str | Path]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise _invalid(text, f"{query!r} is not of the form name=value&name=value") from error
    for name, _ in pairs:
        if name == "password":
            raise _invalid(
                text.partition("?")[0],
                "everybody sees command lines: set KVPLANE_STORE__PASSWORD in the environment",
            )
        if name not in _OPTIONS:
            raise _invalid(text, f"{name} is no option: choose of {', '.join(_OPTIONS)}")
    if len(dict(pairs)) < len(pairs):
        raise _invalid(text, "an option is there twice")
    try:
        return {name: _OPTIONS[name](value) for name, value in pairs}
    except ValueError as error:
        raise _invalid(text, str(error)) from error


def _invalid(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{text!r} is no store: {why}", field="store.url")
