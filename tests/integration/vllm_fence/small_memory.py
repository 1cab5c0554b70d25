"""What tests do to engines with little memory."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kvplane_services.local.engines import LocalEngine
from tests.integration.vllm.test_reuse import QUESTION, new_session
from tests.support.vllm_engines import Reply, Served, ask, metric


def asked_on(
    thread: ThreadPoolExecutor, engine: Served, *args: Any, **kwargs: Any
) -> Future[Reply]:
    """A request that waits for its answer on a thread of its own."""
    return thread.submit(ask, engine, *args, seconds=60, **kwargs)


def write_over(engine: LocalEngine) -> None:
    """Has all blocks of an engine computed anew that nobody holds."""
    for _ in range(engine.options.blocks // 10 + 1):
        other = [{"role": "user", "content": f"{new_session()} {QUESTION * 20}"}]
        ask(engine, other, max_tokens=1)


def all_free(engine: Served) -> bool:
    """Whether nothing is held at an engine; an idle one's gauge may be as old as its last step."""
    ask(engine, [{"role": "user", "content": "x"}], max_tokens=1)
    return metric(engine, "vllm:kv_cache_usage_perc") == 0
