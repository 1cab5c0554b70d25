"""Answers remembered by request id, so that a retry returns the first one."""

import uuid
from collections import OrderedDict
from typing import Generic, TypeVar

from kvplane_services.errors import InvalidRequest

A = TypeVar("A")


class RequestMemory(Generic[A]):
    """First answers by request id, for `keep` seconds, at most `limit` of them.

    Not promised: that a retry which comes later than that is recognised.
    """

    def __init__(self, *, keep: float = 600.0, limit: int = 16_384) -> None:
        self._keep = keep
        self._limit = limit
        self._answers: OrderedDict[str, tuple[float, object, A]] = OrderedDict()

    def find(self, request_id: str, request: object, now: float) -> A | None:
        """The first answer to this request, or None if it is new or carries no id.

        Args:
            request_id: UUID that the caller chose; empty for none.
            request: What was asked; a retry asks the same.
            now: Seconds on the monotonic clock.

        Raises:
            InvalidRequest: The id is no UUID, or was used for another request.

        """
        if not request_id:
            return None
        try:
            uuid.UUID(request_id)
        except ValueError:
            raise InvalidRequest("request_id is not a UUID", field="request_id") from None
        self._forget(now)
        found = self._answers.get(request_id)
        if found is None:
            return None
        _, asked, answer = found
        if asked != request:
            raise InvalidRequest(
                "request_id was used for another request: make a new one for each request",
                field="request_id",
            )
        return answer

    def remember(self, request_id: str, request: object, answer: A, now: float) -> None:
        """Keeps an answer for retries. Without an id nothing is kept."""
        if request_id:
            self._answers[request_id] = (now + self._keep, request, answer)
            self._forget(now)

    def forget(self, request_id: str) -> None:
        """Makes the next call with this id a new one."""
        self._answers.pop(request_id, None)

    def _forget(self, now: float) -> None:
        while self._answers:
            until, _, _ = next(iter(self._answers.values()))
            if until > now and len(self._answers) <= self._limit:
                return
            self._answers.popitem(last=False)
