import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvplane_connector.nixl_progress import progress_thread


@pytest.fixture
def agent_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class in a module that has bindings as NIXL's has."""
    module = ModuleType("fake_nixl_api")
    bindings = SimpleNamespace(nixlAgent=lambda name, config: (name, config))
    module.__dict__["nixlBind"] = bindings
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return type("nixl_agent", (), {"__module__": module.__name__, "bindings": bindings})


def test_agents_built_meanwhile_poll_as_told(agent_class: Any) -> None:
    """Within the block agents get the delay, afterwards NIXL is as it was."""
    original = agent_class.bindings.nixlAgent
    config = SimpleNamespace(useProgThread=False, pthrDelay=0)

    with progress_thread(agent_class, enabled=True, delay_us=1000):
        built = agent_class.bindings.nixlAgent("agent", config)

    assert built == ("agent", config)
    assert (config.useProgThread, config.pthrDelay) == (True, 1000)
    assert agent_class.bindings.nixlAgent is original


def test_another_nixl_keeps_its_defaults(caplog: pytest.LogCaptureFixture) -> None:
    """A NIXL that builds its agent otherwise is left alone, and that is said."""
    with progress_thread(object, enabled=True, delay_us=1000):
        pass

    assert "keeps its defaults" in caplog.text
