"""Two real vLLM engines: what an engine does that only retains."""

import time
from pathlib import Path

from kvplane_services.local.engines import EnginePair, LocalEngine
from tests.integration.vllm.test_reuse import new_session, opening
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import local_turn, turn

SECONDS = 2.0


def naps(engine: LocalEngine) -> int:
    """How often the thread that steps has waited for something, as the kernel counts."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = stat.read_text().rpartition(")")
            # See proc_pid_stat(5): state, parent, group, session.
            if "EngineCor" not in name or int(fields.split()[3]) != engine.process.pid:
                continue
            status = (stat.parent / "task" / stat.parent.name / "status").read_text()
        except OSError:  # It ended.
            continue
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])
    raise AssertionError(f"{engine.name} has no process of an engine core")


def test_an_engine_that_only_retains_rests(plane: RecordingPlane, pair: EnginePair) -> None:
    """It steps some twenty times a second; vLLM alone does as often as it can, after a nap each."""
    session = new_session()
    reply = turn(pair, session, opening(session))
    plane.wait_for_session(session)
    # Orders of the plane end rests, and this plane renews ten times a second.
    plane.renews = lambda _: False
    before = naps(pair.decode)

    time.sleep(SECONDS)

    assert plane.of_session(session)
    assert naps(pair.decode) - before < 150 * SECONDS
    # A rest delays no request, and loses nothing.
    assert local_turn(pair, session, opening(session)).token_ids == reply.token_ids
