"""Has an engine that pauses, sleeps or shuts down give up what it retains.

For vLLM a finished request whose blocks stay is work, and it waits for the end of all work: a
pause, which goes before sleep and before new weights, until then is not complete, and a shutdown
not either. The plane renews what is retained, so that would be never.
"""

import functools
import logging
from typing import Any

_log = logging.getLogger(__name__)

_AMENDED = "_kvplane_heeds_stops"


def heed_stops(core_class: Any) -> bool:
    """Has engines of a class tell their connector, before each step while they stop.

    Told is a connector that has `give_up_retentions`.

    Args:
        core_class: vLLM's `EngineCoreProc`, amended for this process.

    Returns:
        Whether this vLLM is built as that takes; otherwise nothing is changed.

    """
    take_input = getattr(core_class, "_process_input_queue", None)
    if take_input is None or not hasattr(core_class, "is_running"):
        _log.warning("this vLLM stops in another way: a pause waits for the end of all leases")
        return False
    if getattr(take_input, _AMENDED, False):
        return True

    @functools.wraps(take_input)
    def take_input_and_give_up(core: Any) -> Any:
        # The order to pause may be among what comes in.
        taken = take_input(core)
        if core.scheduler.pause_state or not core.is_running():
            give_up = getattr(core.scheduler.get_kv_connector(), "give_up_retentions", None)
            if give_up is not None:
                give_up()
        return taken

    setattr(take_input_and_give_up, _AMENDED, True)
    core_class._process_input_queue = take_input_and_give_up  # noqa: SLF001 - vLLM has no hook there
    return True
