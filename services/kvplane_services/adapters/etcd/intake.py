"""How what etcd says of a table comes into this process's copy of it."""

import logging
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from kvplane_services.adapters.etcd.backend import KeyValue
from kvplane_services.store.early import Early
from kvplane_services.store.model import TableSpec, Versioned
from kvplane_services.store.table_copy import TableCopy

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Intake(Generic[T]):
    """Decodes values, but for those that this process wrote: it holds the writer's own objects.

    Args:
        spec: How values are written down.
        copy: What they come into.

    """

    def __init__(self, *, spec: TableSpec[T], copy: TableCopy[T]) -> None:
        self.copy = copy
        self._spec = spec
        # Values on their way to etcd, with their bytes: their events may come before the answers.
        self._writing: dict[str, tuple[bytes, T]] = {}
        self._complained = False

    @contextmanager
    def writing(self, values: Mapping[str, tuple[bytes, T]]) -> Generator[None]:
        """Inside of the block these values are on their way to etcd."""
        self._writing.update(values)
        try:
            yield
        finally:
            for key, value in values.items():
                if self._writing.get(key) is value:
                    del self._writing[key]

    def learn(self, key: str, found: KeyValue | None, revision: int) -> None:
        """Notes what a key was found to hold at a revision, ahead of the watch."""
        if found is None:
            self.copy.learn_gone(key, revision)
            return
        value = self._value(key, found)
        if value is not None:
            self.copy.learn(key, value, found.mod_revision)

    def changed(self, key: str, item: KeyValue) -> None:
        """Takes in what the watch tells of a write."""
        value = self._value(key, item)
        if value is None:
            self.copy.delete(key, item.mod_revision)
        else:
            self.copy.put(key, value, item.mod_revision)

    def deleted(self, key: str, revision: int) -> None:
        """Takes in what the watch tells of a deletion."""
        self.copy.delete(key, revision)

    def advance(self, revision: int) -> None:
        """Notes that the watch has told everything up to a revision."""
        self.copy.advance(revision)

    def learnt(self) -> Mapping[str, Early[T]]:
        """What is known ahead of the watch, for `start_over`."""
        return self.copy.learnt()

    def listed(self, key: str, item: KeyValue, *, same: bool) -> Versioned[T] | None:
        """A value of a listing; None if it cannot be read.

        Args:
            key: Its key.
            item: It.
            same: Whether a revision that is held is the same value: etcd kept its data.

        """
        held = self.copy.find(key)
        if held is not None and same and held.revision == item.mod_revision:
            return held
        value = self.decoded(key, item.value)
        return None if value is None else Versioned(key, value, item.mod_revision)

    def start_over(
        self, items: Iterable[Versioned[T]], revision: int, *, learnt: Mapping[str, Early[T]]
    ) -> None:
        """See `TableCopy.start_over`."""
        self.copy.start_over(items, revision, learnt=learnt)

    def decoded(self, key: str, data: bytes) -> T | None:
        """What the bytes say; None if they cannot be read, as those of a newer version may be."""
        try:
            return self._spec.decode(data)
        except ValueError as error:
            if not self._complained:
                self._complained = True
                _log.warning(
                    "%s %s cannot be read, and is taken for missing, as are others like it: %s",
                    self._spec.name,
                    key,
                    error,
                )
            return None

    def _value(self, key: str, item: KeyValue) -> T | None:
        """The value: the writer's own object if this process wrote it, for it is held once then."""
        early = self.copy.early_value(key, item.mod_revision)
        if early is not None:
            return early
        writing = self._writing.get(key)
        if writing is not None and writing[0] == item.value:
            return writing[1]
        return self.decoded(key, item.value)
