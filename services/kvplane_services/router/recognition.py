"""Which conversation a turn belongs to, for clients that name none too."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from kvplane_services.router.inflight import InFlight
from kvplane_services.router.model import Subject
from kvplane_services.router.view import RouterView
from kvplane_services.session.model import SessionKey


@dataclass(frozen=True, slots=True)
class Recognised:
    """The session that a turn runs under, and the one whose retention it may read.

    They differ for a fork: a second turn on messages whose session has a turn in flight.
    It reads the same retention and leaves its own under a session of its own.
    """

    key: SessionKey
    source: SessionKey


def recognise(
    subject: Subject, *, view: RouterView, in_flight: InFlight, new_id: Callable[[], str]
) -> Recognised:
    """The session of a turn.

    A client that names none is recognised by its messages: the session of the longest
    leading part that some turn had, or of all of them for a retry. A wrong guess costs a
    recompute at most, because readers compare tokens.
    """
    key = subject.session_key
    if key.session_id:
        return Recognised(key, key)
    fresh = dataclasses.replace(key, session_id=f"auto-{new_id()}")
    found = view.session_of(key, subject.message_digests)
    if found is None:
        return Recognised(fresh, fresh)
    return Recognised(fresh if in_flight.serves(found) else found, found)
