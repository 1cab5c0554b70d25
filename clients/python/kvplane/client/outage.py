"""Logs trouble with the plane once when it begins or changes, and once when it is over."""

import logging

from kvplane.client.errors import KvplaneClientError


class Outage:
    """One party's trouble with the plane; a plane can be away for hours, the log must not fill.

    Args:
        log: Where to say it.
        who: Who has the trouble.
        target: The plane's address.

    """

    def __init__(self, *, log: logging.Logger, who: str, target: str) -> None:
        self._log = log
        self._who = who
        self._target = target
        self._said = ""

    def goes_on(self, error: KvplaneClientError) -> None:
        """An attempt failed."""
        trouble = f"{error.code}: {error.message}"
        if trouble != self._said:
            self._log.warning(
                "%s: no link to the plane at %s, trying on: %s", self._who, self._target, trouble
            )
            self._said = trouble

    def over(self) -> None:
        """An attempt succeeded."""
        if self._said:
            self._log.info("%s: the plane at %s is back", self._who, self._target)
            self._said = ""
