import json
from pathlib import Path
from typing import Any

import pytest

from kvplane_services.local.vllm_command import EngineOptions, command, environment

DECODE = EngineOptions(
    name="decode-0",
    role="decode",
    port=8200,
    side_channel_port=5700,
    model_dir=Path("/models/tiny"),
    plane="127.0.0.1:7000",
    prefix_caching=True,
    settings={"lease_ttl": 8},
)


def transfer_config(options: EngineOptions) -> dict[str, Any]:
    arguments = command(Path("python"), options)
    found: dict[str, Any] = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    return found


def test_our_connector_is_told_of_the_plane() -> None:
    """The connector's settings name the plane and where the engine is reached."""
    config = transfer_config(DECODE)

    assert config["kv_connector_module_path"] == "kvplane_connector.connector"
    assert config["kv_role"] == "kv_consumer"
    assert config["kv_connector_extra_config"]["kvplane"] == {
        "role": "decode",
        "lease_ttl": 8,
        "plane": "127.0.0.1:7000",
        "engine_id": "decode-0",
        "endpoint": "http://127.0.0.1:8200",
    }


def test_stock_engines_get_vllms_connector() -> None:
    """Nothing of ours is in a stock engine's configuration."""
    stock = EngineOptions(
        name="p",
        role="prefill",
        port=1,
        side_channel_port=2,
        model_dir=Path("m"),
        connector="stock",
    )

    config = transfer_config(stock)

    assert config["kv_connector"] == "NixlConnector"
    assert config["kv_role"] == "kv_producer"
    assert "kvplane" not in config["kv_connector_extra_config"]


def test_engines_do_not_inherit_vllm_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller's shell sets for another vLLM does not reach the engines."""
    monkeypatch.setenv("VLLM_USE_V1", "0")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HOME", "/home/somebody")

    variables = environment(DECODE, (Path("/a"), Path("/b")))

    assert "VLLM_USE_V1" not in variables
    assert variables["PYTHONPATH"] == "/a:/b"
    assert variables["HOME"] == "/home/somebody"
    assert variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5700"
