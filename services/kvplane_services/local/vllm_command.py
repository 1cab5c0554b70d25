"""How to start vLLM so that two engines fit two CPU cores.

Each setting is there for a measured reason: the executor inside the engine's process and one
OMP thread save a process that spins; shared memory before TCP for NIXL; a small block
pool keeps memory and start low; float32 and eager mode make greedy replies exact.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

BLOCK_SIZE = 128


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """One engine.

    Attributes:
        name: Its name in the plane.
        role: What it serves.
        port: Of its OpenAI-compatible server.
        side_channel_port: Of its NIXL side channel.
        model_dir: Folder of the model.
        model_name: Name it is served under.
        plane: Address of the plane's gRPC; empty for none.
        prefix_caching: Whether it keeps its own prefix cache.
        blocks: KV blocks of `BLOCK_SIZE` tokens.
        max_tokens: Longest prompt and reply together.
        connector: Ours, or vLLM's own.
        connector_module: Where vLLM finds ours.
        settings: More kvplane settings of the connector.
        extra_config: More of vLLM's own `kv_connector_extra_config`.
        load_failure_policy: What a failed read does to its request.
        transports: UCX's transports, which NIXL moves blocks by.
        arguments: More command-line arguments.

    """

    name: str
    role: Literal["prefill", "decode"]
    port: int
    side_channel_port: int
    model_dir: Path
    model_name: str = "kvplane-tiny"
    plane: str = ""
    prefix_caching: bool = False
    blocks: int = 400
    max_tokens: int = 8192
    connector: Literal["kvplane", "stock"] = "kvplane"
    connector_module: str = "kvplane_connector.connector"
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extra_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    load_failure_policy: Literal["recompute", "fail"] = "recompute"
    transports: str = "tcp,posix,sysv,self,cma"
    arguments: tuple[str, ...] = ()


def command(python: Path, options: EngineOptions) -> list[str]:
    """The command line of an engine's server."""
    caching = "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching"
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", str(options.port)),
        *("--model", str(options.model_dir), "--served-model-name", options.model_name),
        *("--dtype", "float32", "--max-model-len", str(options.max_tokens)),
        *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(options.blocks)),
        *("--distributed-executor-backend", "uni", "--enforce-eager", caching),
        *("--disable-uvicorn-access-log", "--generation-config", "vllm"),
        *("--kv-transfer-config", json.dumps(_transfer_config(options))),
        *options.arguments,
    ]


def environment(options: EngineOptions, import_paths: tuple[Path, ...] = ()) -> dict[str, str]:
    """The environment of an engine's server: this process's, and what the engine needs.

    Args:
        options: The engine.
        import_paths: Folders to import packages from, before those of its python.

    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    kept.pop("PYTHONPATH", None)
    if import_paths:
        kept["PYTHONPATH"] = os.pathsep.join(map(str, import_paths))
    return kept | {
        # Not the folder that we happen to run in: a name in it could stand before a library.
        "PYTHONSAFEPATH": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "UCX_TLS": options.transports,
        "UCX_NET_DEVICES": "lo",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(options.side_channel_port),
    }


def _transfer_config(options: EngineOptions) -> dict[str, Any]:
    extra = {"bidirectional_kv_xfer": True, "num_threads": 0, **options.extra_config}
    config: dict[str, Any] = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if options.role == "prefill" else "kv_consumer",
        "kv_load_failure_policy": options.load_failure_policy,
        "kv_connector_extra_config": extra,
    }
    if options.connector == "kvplane":
        config["kv_connector"] = "KvplaneConnector"
        config["kv_connector_module_path"] = options.connector_module
        extra["kvplane"] = {"role": options.role, **options.settings}
        if options.plane:
            extra["kvplane"] |= {
                "plane": options.plane,
                "engine_id": options.name,
                "endpoint": f"http://127.0.0.1:{options.port}",
            }
    return config
