"""Keeps the NIXL side channel listening.

vLLM's listener ends at the first message that it cannot decode; from then on no engine can
make contact. The side channel knows no authentication, so anything may arrive there.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

# Between two starts of the listener, so that a flood of bad messages does not make it spin.
_PAUSE = 0.02


def listen_on(
    listen: Callable[..., None],
    encoded_data: Any,
    ready_event: threading.Event,
    stop_event: threading.Event,
    *address: Any,
) -> None:
    """Runs vLLM's `listen` until `stop_event`, starting it again whenever it fails.

    vLLM's own loop is kept, and not replaced by a stricter one, because what it sends differs
    by version. A start takes a few milliseconds; a peer whose request falls into
    them recomputes.
    """
    while not stop_event.is_set():
        try:
            listen(encoded_data, ready_event, stop_event, *address)
            return
        except Exception as error:  # noqa: BLE001 - the outermost boundary of this thread
            if not ready_event.is_set():
                # It never listened: the address is taken, for example. Nobody would retry for us.
                _log.exception("the NIXL side channel cannot listen on %s", address)
                ready_event.set()
                return
            _log.warning("the NIXL side channel got a message that it cannot read: %r", error)
            stop_event.wait(_PAUSE)
