"""Logs trouble with the plane once when it begins or changes, and once when it is over."""

import logging

from kvplane.client.addresses import parse_targets
from kvplane.client.errors import KvplaneClientError, moves_on


class Outage:
    """One party's trouble with the plane; a plane can be away for hours, the log must not fill.

    That a replica is away is worth a note while another may answer. It is an outage once all
    have failed since the last answer, or one refuses what the others would refuse as well.

    Args:
        log: Where to say it.
        who: Who has the trouble.
        target: The plane's addresses, `host:port,host:port`.

    """

    def __init__(self, *, log: logging.Logger, who: str, target: str) -> None:
        self._log = log
        self._who = who
        self._target = target
        self._replicas = len(parse_targets(target))
        # What was said of each replica since the last answer.
        self._said: dict[str, str] = {}
        self._warned = False

    def goes_on(self, error: KvplaneClientError, *, at: str, to: str) -> None:
        """An attempt failed.

        Args:
            error: How.
            at: The replica that failed.
            to: The one to be tried next; the same if there is no other, or it would do no better.

        """
        trouble = f"{error.code}: {error.message}"
        if self._said.get(at) == trouble:
            return
        self._said[at] = trouble
        if moves_on(error) and len(self._said) < self._replicas:
            self._log.info(
                "%s: no link to the replica at %s, going on at %s: %s", self._who, at, to, trouble
            )
            return
        self._warned = True
        self._log.warning(
            "%s: no link to the plane at %s, trying on: %s", self._who, self._target, trouble
        )

    def over(self) -> None:
        """An attempt succeeded."""
        if self._warned:
            self._log.info("%s: the plane at %s is back", self._who, self._target)
        self._said.clear()
        self._warned = False
