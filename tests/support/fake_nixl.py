"""NIXL as the connector uses it, with memory of other processes that a test can write to."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Transfer:
    """A transfer of one word, and whether it has begun and ended.

    Attributes:
        source: Where the word is.
        target: Where it goes.
        notice: What the owner is told with it.
        begun: Whether it was posted.

    """

    source: int
    target: int
    notice: bytes = b""
    begun: bool = False
    state: str = "PROC"
    released: bool = False


@dataclass
class FakeNixl:
    """Transfers that end when a test says so; addresses of owners are made up.

    Attributes:
        words: What owners have in memory, by address.
        ends: The state in which a transfer is once it began, asked each time.
        fails: What NIXL fails to do from now on.

    """

    words: dict[int, int] = field(default_factory=dict[int, int])
    ends: Callable[[Transfer], str] = lambda _: "DONE"
    fails: set[str] = field(default_factory=set[str])
    lists: list[list[tuple[int, int, int]]] = field(default_factory=list[Any])
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    told: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    released_lists: list[int] = field(default_factory=list[int])

    def get_reg_descs(self, places: Any, kind: str) -> Any:
        assert kind == "DRAM"
        return places

    def register_memory(self, places: Any, *, backends: Any) -> None:
        self._may("register_memory")

    def get_xfer_descs(self, places: Any, kind: str) -> Any:
        assert kind == "DRAM"
        return places

    def prep_xfer_dlist(self, agent: str, places: Any) -> int:
        self._may(f"prep {agent}")
        self.lists.append(places)
        return len(self.lists) - 1

    def release_dlist_handle(self, handle: int) -> None:
        self.released_lists.append(handle)

    def make_prepped_xfer(
        self, kind: str, to: int, here: Any, of: int, there: Any, notif_msg: bytes = b""
    ) -> Transfer:
        assert kind == "READ"
        self._may("make_prepped_xfer")
        ((target, _, _),) = [self.lists[to][index] for index in here]
        ((source, _, _),) = [self.lists[of][index] for index in there]
        made = Transfer(source, target, notif_msg)
        self.transfers.append(made)
        return made

    def transfer(self, made: Transfer) -> str:
        self._may("transfer")
        made.begun = True
        return self.check_xfer_state(made)

    def check_xfer_state(self, made: Transfer) -> str:
        assert made.begun
        assert not made.released
        if made.state == "PROC":
            made.state = self.ends(made)
            if made.state == "DONE":
                value = ctypes.c_uint64.from_address(made.target)
                value.value = self.words[made.source]
        return made.state

    def release_xfer_handle(self, made: Transfer) -> None:
        self._may("release")
        made.released = True

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        self.told.append((agent, notif_msg))

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {}

    def _may(self, what: str) -> None:
        if what in self.fails:
            raise RuntimeError(f"NIXL fails to {what}")
