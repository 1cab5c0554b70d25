"""The snippets of the client's README."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvplane.client import SessionKey
from tests.support.linked_engine import eventually, linked_engine
from tests.support.plane_process import PlaneProcess

_README = Path(__file__).resolve().parents[3] / "clients" / "python" / "README.md"
_SNIPPETS = re.findall(
    r"^```python\n(.*?)^```", _README.read_text("utf-8"), re.DOTALL | re.MULTILINE
)
_OUTPUT = (
    r"engines/decode-0 0\nleases/\S+ sessions/default:my-model::conversation-1 256\n",
    r"engines/decode-0\n\['my-model'\]\n",
    r"kept for 0:0[012]:\d\d(\.\d+)?\n",
    r"engines: \['engines/decode-0'\]\n",
    r"",
    r"NOT_FOUND engines/no-such-engine\n",
)


def test_each_snippet_is_tested() -> None:
    """The page has as many snippets as this module knows outputs."""
    assert len(_SNIPPETS) == len(_OUTPUT)


@pytest.mark.parametrize("number", range(len(_OUTPUT)))
async def test_snippet_runs(process: PlaneProcess, number: int) -> None:
    """A snippet runs as it stands, but for the plane's address, and prints what it should."""
    program = _SNIPPETS[number].replace("127.0.0.1:7000", process.target)
    async with linked_engine("decode-0", process.target, model="my-model") as engine:
        # Another turn each time: a snippet may have ended the conversation over the one before.
        retention = f"r{number}"
        engine.retain(retention, SessionKey("default", "my-model", "", "conversation-1"))
        await eventually(lambda: engine.held[retention].lease != "")
        done = await _run(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(_OUTPUT[number], done.stdout), done.stdout


async def _run(program: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
