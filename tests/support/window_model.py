"""The tiny model with a sliding window in every other layer, which takes two kinds of KV cache.

Made out of the tiny Qwen3 model: Llama's layers are Qwen3's without the norms of queries and keys,
and vLLM's Llama takes a window for each layer.
"""

import json
from pathlib import Path
from typing import Any

# Tokens, and no multiple of a block: a window then begins within a block.
WINDOW = 200
LAYER_TYPES = ["full_attention", "sliding_attention"] * 2

_LENGTH_BYTES = 8


def add_windows(folder: Path) -> None:
    """Turns the tiny model in `folder` into one with windows."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "sliding_window": WINDOW,
        "layer_types": LAYER_TYPES,
    }
    path.write_text(json.dumps(config))
    _leave_out(folder / "model.safetensors", ("q_norm", "k_norm"))


def _leave_out(path: Path, parts: tuple[str, ...]) -> None:
    """Removes the tensors whose names have one of these parts from a safetensors file."""
    content = path.read_bytes()
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(content[_LENGTH_BYTES:start])
    tensors = bytearray()
    kept: dict[str, Any] = {"__metadata__": header.pop("__metadata__")}
    for name, one in header.items():
        if any(part in name for part in parts):
            continue
        begin, end = (start + offset for offset in one["data_offsets"])
        kept[name] = {**one, "data_offsets": [len(tensors), len(tensors) + end - begin]}
        tensors += content[begin:end]
    encoded = json.dumps(kept).encode()
    path.write_bytes(len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded + tensors)
