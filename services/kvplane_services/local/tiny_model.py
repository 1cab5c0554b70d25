"""Writes a tiny Qwen3 model with random weights, and a tokenizer that never lies.

Run under the engine's python: `python -m kvplane_services.local.tiny_model FOLDER`. It
needs numpy, safetensors and tokenizers, which vLLM brings; nothing is downloaded.

The weights are wide (`INITIALIZER_RANGE`), so that greedy replies vary and wrong KV shows
as another token. The tokenizer works on single characters: the text of every token encodes
back to that token, so the history of a chat re-encodes to exactly the tokens that the
engine held. Characters outside the vocabulary become "?".
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

VOCABULARY_SIZE = 384
SEED = 20260101
INITIALIZER_RANGE = 0.12
# Norms of queries and keys. At 1 attention over a long prompt averages everything away: replies
# fall into a loop and do not show that one token of the history was another.
ATTENTION_SHARPNESS = 3.0
MAX_TOKENS = 16_384

_FINGERPRINT = "kvplane-model.sha256"

END_OF_TURN = "\u2403"
SYSTEM, USER, ASSISTANT, TOOL = "\u25a0", "\u25b6", "\u25c0", "\u25a1"

# The end of a turn is the only token that is not shown. Role markers are ordinary tokens.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{{ '" + ASSISTANT + "' }}"
    "{%- elif message['role'] == 'system' or message['role'] == 'developer' -%}{{ '"
    + SYSTEM
    + "' }}"
    "{%- elif message['role'] == 'tool' -%}{{ '" + TOOL + "' }}"
    "{%- else -%}{{ '" + USER + "' }}{%- endif -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] or [] -%}{{ part['text'] or '' }}"
    "{%- endfor -%}{%- endif -%}{{ '" + END_OF_TURN + "' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '" + ASSISTANT + "' }}{%- endif -%}"
)

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": INITIALIZER_RANGE,
    "intermediate_size": 768,
    "max_position_embeddings": MAX_TOKENS,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": VOCABULARY_SIZE,
}


def vocabulary() -> list[str]:
    """The text of each token, by id: the end of a turn, then one character each."""
    characters = ["\n", *map(chr, range(0x20, 0x7F)), SYSTEM, USER, ASSISTANT, TOOL]
    # Printable single characters without decomposition: Latin-1, Latin Extended-A and B, Greek.
    more = [*range(0xA1, 0xAD), *range(0xAE, 0x100), *range(0x100, 0x180), *range(0x391, 0x3A2)]
    more += [*range(0x3A3, 0x3CA), *range(0x410, 0x450)]
    characters += map(chr, more)
    texts = [END_OF_TURN, *characters][:VOCABULARY_SIZE]
    if len(texts) != VOCABULARY_SIZE or len(set(texts)) != VOCABULARY_SIZE:
        raise AssertionError("the vocabulary has too few or repeated characters")
    return texts


def tokenizer_json() -> dict[str, Any]:
    """The content of tokenizer.json: one token per character."""
    texts = vocabulary()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": END_OF_TURN,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "[\\s\\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {text: index for index, text in enumerate(texts)},
            "unk_token": "?",
        },
    }


def write(folder: Path, seed: int = SEED) -> None:
    """Writes the model to `folder`, which is made if it does not exist. Same seed, same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FINGERPRINT).unlink(missing_ok=True)
    _write_json(folder / "tokenizer.json", tokenizer_json())
    # No unk_token here: it would make "?" a special token, which is not shown.
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TURN,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0})
    _write_weights(folder / "model.safetensors", seed)
    _write_json(folder / "config.json", CONFIG)
    # Last, because its presence says that the folder is complete.
    (folder / _FINGERPRINT).write_text(fingerprint(seed))


def is_complete(folder: Path, seed: int = SEED) -> bool:
    """Whether `folder` holds this very model, so that it need not be written again."""
    try:
        return (folder / _FINGERPRINT).read_text() == fingerprint(seed)
    except OSError:
        return False


def fingerprint(seed: int) -> str:
    """Names a model by all that it is made from."""
    made_from = json.dumps([CONFIG, ATTENTION_SHARPNESS, CHAT_TEMPLATE, tokenizer_json(), seed])
    return hashlib.sha256(made_from.encode()).hexdigest()


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights; one-dimensional ones are norms, constant."""
    hidden, middle = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    head, vocab = CONFIG["head_dim"], CONFIG["vocab_size"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (queries, hidden),
            f"{at}.self_attn.k_proj.weight": (keys, hidden),
            f"{at}.self_attn.v_proj.weight": (keys, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, queries),
            f"{at}.self_attn.q_norm.weight": (head,),
            f"{at}.self_attn.k_norm.weight": (head,),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.mlp.gate_proj.weight": (middle, hidden),
            f"{at}.mlp.up_proj.weight": (middle, hidden),
            f"{at}.mlp.down_proj.weight": (hidden, middle),
        }
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def _write_weights(path: Path, seed: int) -> None:
    import numpy as np  # noqa: PLC0415 - in the engine's environment only
    from safetensors.numpy import save_file  # noqa: PLC0415 - as above

    random = np.random.default_rng(seed)
    weights = {
        name: np.full(shape, ATTENTION_SHARPNESS if "self_attn" in name else 1.0, np.float32)
        if len(shape) == 1
        else (random.standard_normal(shape, np.float32) * np.float32(INITIALIZER_RANGE))
        for name, shape in weight_shapes().items()
    }
    save_file(weights, path, metadata={"format": "pt"})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the model to the folder named on the command line, unless it is there."""
    parser = argparse.ArgumentParser(description="Write a tiny Qwen3 model with random weights.")
    parser.add_argument("folder", type=Path, help="where to write it; made if missing")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the weights (%(default)s)")
    arguments = parser.parse_args()
    if not is_complete(arguments.folder, arguments.seed):
        write(arguments.folder, arguments.seed)


if __name__ == "__main__":
    main()
