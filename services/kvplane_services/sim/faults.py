"""Faults that a simulated engine shows on request.

Each fault has a kind, the values it takes, and how many requests it hits before it wears off.
They are given at the start (`--fault`) and, while it runs, at POST /sim/faults on loopback.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvplane_services.errors import InvalidRequest


class FaultKind(enum.Enum):
    """What goes wrong."""

    DIE = "die"
    CUT = "cut"
    STALL = "stall"
    STATUS = "status"
    FREEZE = "freeze"
    SLOW = "slow"
    SILENT = "silent"
    NO_PARAMS = "no-params"
    FAIL_READS = "fail-reads"


# What each kind does and takes. The first value is required unless it has a default.
DESCRIPTIONS: dict[FaultKind, str] = {
    FaultKind.DIE: "the process ends, without a word, once at_byte bytes of an answer were sent",
    FaultKind.CUT: "the connection breaks once at_byte bytes of an answer were sent",
    FaultKind.STALL: "an answer stops for seconds (0: for ever) once at_byte bytes were sent",
    FaultKind.STATUS: "requests are answered with status, and with Retry-After: retry_after",
    FaultKind.FREEZE: "the engine does nothing, heartbeats included, until the fault is taken back",
    FaultKind.SLOW: "everything takes factor times as long",
    FaultKind.SILENT: "no heartbeats are sent, as with a broken network to the plane",
    FaultKind.NO_PARAMS: "answers carry no kv_transfer_params",
    FaultKind.FAIL_READS: "reads of other engines' blocks fail",
}

_VALUES: dict[FaultKind, dict[str, float]] = {
    FaultKind.DIE: {"at_byte": 0},
    FaultKind.CUT: {"at_byte": 0},
    FaultKind.STALL: {"at_byte": 0, "seconds": 0},
    FaultKind.STATUS: {"status": 500, "retry_after": 0},
    FaultKind.SLOW: {"factor": 10},
}

# Kinds that change the engine as a whole and so are not used up by requests.
_LASTING = frozenset({FaultKind.FREEZE, FaultKind.SLOW, FaultKind.SILENT})


@dataclass(slots=True)
class Fault:
    """One fault; `left` counts the requests that it will still hit, None for all."""

    kind: FaultKind
    values: dict[str, float] = field(default_factory=dict[str, float])
    left: int | None = None

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": self.kind.value, **self.values, "count": self.left}


def parse_fault(value: Any) -> Fault:
    """A fault from JSON such as `{"kind": "stall", "at_byte": 100, "seconds": 2, "count": 1}`.

    Raises:
        InvalidRequest: The kind or a value is unknown or malformed.

    """
    if not isinstance(value, dict):
        raise InvalidRequest("a fault is a JSON object", field="faults")
    try:
        kind = FaultKind(value.get("kind"))
    except ValueError as error:
        known = ", ".join(kind.value for kind in FaultKind)
        raise InvalidRequest(
            f"{value.get('kind')!r} is no fault; there are {known}", field="kind"
        ) from error
    values = dict(_VALUES.get(kind, {}))
    left: int | None = None
    for key, given in value.items():
        if key == "kind":
            continue
        if given is None and key == "count":
            continue
        if isinstance(given, bool) or not isinstance(given, int | float) or given < 0:
            raise InvalidRequest(f"{key} of a fault must be a number, 0 or more", field=key)
        if key == "count" and kind not in _LASTING:
            left = int(given)
        elif key in values:
            values[key] = given
        else:
            known = ", ".join([*_VALUES.get(kind, {}), *([] if kind in _LASTING else ["count"])])
            raise InvalidRequest(
                f"fault {kind.value} does not take {key}; it takes {known or 'nothing'}", field=key
            )
    return Fault(kind, values, left)


def parse_faults(body: Any) -> list[Fault]:
    """The faults in `{"faults": [...]}`.

    Raises:
        InvalidRequest: It is not that, or a fault cannot be read.

    """
    given = body.get("faults") if isinstance(body, dict) else None
    if not isinstance(given, list):
        raise InvalidRequest('expected {"faults": [...]}', field="faults")
    return [parse_fault(one) for one in given]


def parse_option(text: str) -> Fault:
    """A fault from the command line, such as `stall:at_byte=100,seconds=2,count=1`.

    Raises:
        InvalidRequest: It cannot be read.

    """
    kind, _, rest = text.partition(":")
    value: dict[str, Any] = {"kind": kind}
    for pair in filter(None, rest.split(",")):
        key, _, number = pair.partition("=")
        try:
            value[key.replace("-", "_")] = float(number)
        except ValueError as error:
            raise InvalidRequest(
                f"{pair!r} in fault {text!r} is not name=number", field="fault"
            ) from error
    return parse_fault(value)


class FaultSet:
    """The faults of one engine."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = list(faults)

    def replace(self, faults: Iterable[Fault]) -> None:
        """Takes back all faults and sets these."""
        self._faults = list(faults)

    def describe(self) -> list[dict[str, Any]]:
        """As JSON."""
        return [fault.describe() for fault in self._faults]

    def lasting(self, kind: FaultKind) -> Fault | None:
        """The fault of this kind, if any, without using it up."""
        return next((fault for fault in self._faults if fault.kind is kind), None)

    def take(self, *kinds: FaultKind) -> Fault | None:
        """The first fault of these kinds that hits the request at hand, used up by one."""
        for fault in self._faults:
            if fault.kind in kinds:
                if fault.left is not None:
                    fault.left -= 1
                    if fault.left <= 0:
                        self._faults.remove(fault)
                return fault
        return None
