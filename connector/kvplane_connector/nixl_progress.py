"""Sets how NIXL's progress thread polls.

vLLM has no option for it and NIXL's Python agent fixes the delay at 0: one core busy per
agent. Without the thread an engine that has nothing to do serves no reads. So the
agent's configuration is amended while vLLM builds the agent.
"""

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_log = logging.getLogger(__name__)


@contextmanager
def progress_thread(agent_class: Any, *, enabled: bool, delay_us: int) -> Generator[None]:
    """Agents of `agent_class` built meanwhile get this progress thread.

    Args:
        agent_class: NIXL's `nixl_agent`.
        enabled: Whether there is a progress thread at all.
        delay_us: Microseconds between its polls.

    """
    bindings = getattr(sys.modules.get(agent_class.__module__), "nixlBind", None)
    build = getattr(bindings, "nixlAgent", None)
    if bindings is None or build is None:
        _log.warning(
            "this NIXL builds its agent in another way: the progress thread keeps its defaults"
        )
        yield
        return

    def build_amended(name: str, config: Any) -> Any:
        config.useProgThread = enabled
        config.pthrDelay = delay_us
        return build(name, config)

    bindings.nixlAgent = build_amended
    try:
        yield
    finally:
        bindings.nixlAgent = build
