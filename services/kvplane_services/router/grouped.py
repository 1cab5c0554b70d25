"""Values in groups, most of which have one member."""

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Grouped(Generic[K, V]):
    """Values by group and name. A group of one takes a quarter of the memory of a dict."""

    def __init__(self) -> None:
        self._groups: dict[K, tuple[str, V] | dict[str, V]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[K]:
        """The groups that have a member."""
        return iter(self._groups)

    def put(self, group: K, name: str, value: V) -> None:
        """Writes a member; a new one becomes the group's last."""
        members = self._groups.get(group)
        if isinstance(members, dict):
            members[name] = value
        elif members is None or members[0] == name:
            self._groups[group] = (name, value)
        else:
            self._groups[group] = dict((members, (name, value)))

    def drop(self, group: K, name: str) -> None:
        """Removes a member, if it is one."""
        members = self._groups.get(group)
        if isinstance(members, dict):
            members.pop(name, None)
            if len(members) == 1:
                self._groups[group] = next(iter(members.items()))
        elif members is not None and members[0] == name:
            del self._groups[group]

    def of(self, group: K) -> tuple[V, ...]:
        """The members of a group, first to last."""
        members = self._groups.get(group)
        if members is None:
            return ()
        return tuple(members.values()) if isinstance(members, dict) else (members[1],)
