"""What kvplane adds to vLLM's `kv_transfer_params`, under the keys `KEY` and `WORD_KEY`.

Three messages travel there. A *turn mark* goes to the decode engine with a request and says
whose turn it is; the connector reports the retention under it. A *proof* goes with a handle
to the prefill engine and says which tokens the blocks hold. A *word* goes with a handle
to either engine and says where it finds, after its read, whether the blocks were still kept;
it has a key of its own, because a decode leg takes a turn mark and a word at once.

vLLM hands unknown keys of `kv_transfer_params` to the connector untouched; stock
connectors ignore ours.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from kvplane.digest import DigestChain

KEY = "kvplane"
WORD_KEY = "kvplane_word"

# Tenant, model, adapter, session id.
_SESSION_PARTS = 4
# Table and value of a word.
_PLACE_PARTS = 2
# Largest number in a word, and in its address.
_MOST = (1 << 64) - 1
# A table longer than this is nobody's, and readers prepare all of it.
_MOST_SLOTS = 1 << 12

# What a prefill engine is sent when it has nothing to read: keep the blocks for a decode engine.
PREFILL_ONLY: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}

# What a decode engine is sent that serves the turn by itself and is to retain its blocks.
LOCAL_ONLY: Mapping[str, Any] = {"do_remote_decode": False, "do_remote_prefill": False}


@dataclass(frozen=True, slots=True)
class TurnMark:
    """Whose turn a request is; `message_digest` names its messages where no session id does."""

    tenant: str
    model: str
    adapter: str
    session_id: str
    decision_id: str = ""
    message_digest: bytes = b""

    def encode(self) -> dict[str, Any]:
        """The value for `kv_transfer_params[KEY]`."""
        return {
            "session": [self.tenant, self.model, self.adapter, self.session_id],
            "decision_id": self.decision_id,
            "message_digest": self.message_digest.hex(),
        }

    @classmethod
    def decode(cls, params: Mapping[str, Any] | None) -> "TurnMark | None":
        """The mark in a request's `kv_transfer_params`, or None if it has none or a broken one."""
        value = (params or {}).get(KEY)
        if not isinstance(value, Mapping):
            return None
        session = value.get("session")
        decision_id = value.get("decision_id", "")
        digest = value.get("message_digest", "")
        if not (isinstance(session, list) and len(session) == _SESSION_PARTS):
            return None
        if not all(isinstance(text, str) for text in (*session, decision_id, digest)):
            return None
        try:
            tenant, model, adapter, session_id = session
            return cls(tenant, model, adapter, session_id, decision_id, bytes.fromhex(digest))
        except ValueError:
            return None


def encode_proof(chain: DigestChain) -> dict[str, Any]:
    """The value for `kv_transfer_params[KEY]` of a handle."""
    return {
        "algorithm": chain.algorithm,
        "chunk_tokens": chain.chunk_tokens,
        "tokens": chain.tokens,
        "digests": base64.b64encode(b"".join(chain.digests)).decode(),
        "digest_bytes": len(chain.digests[0]) if chain.digests else 0,
    }


def decode_proof(params: Mapping[str, Any] | None) -> DigestChain | None:
    """The proof in a handle's `kv_transfer_params`, or None if it has none or a broken one."""
    value = (params or {}).get(KEY)
    if not isinstance(value, Mapping):
        return None
    try:
        size = int(value["digest_bytes"])
        joined = base64.b64decode(value["digests"], validate=True)
        if size <= 0 or len(joined) % size:
            return None
        return DigestChain(
            tokens=int(value["tokens"]),
            digests=tuple(joined[i : i + size] for i in range(0, len(joined), size)),
            chunk_tokens=int(value["chunk_tokens"]),
            algorithm=str(value["algorithm"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error):
        return None


@dataclass(frozen=True, slots=True)
class WordPlace:
    """A retention's generation word at one rank of its owner.

    Attributes:
        table: Address of the rank's table of words.
        value: What the word is while the blocks are kept.

    """

    table: int
    value: int


@dataclass(frozen=True, slots=True)
class Word:
    """Where a reader finds whether the blocks of a handle were kept until it had read them.

    Attributes:
        slot: Which word of each table.
        slots: Words of each table.
        places: The word at each rank of the owner, by its pipeline and tensor rank.

    """

    slot: int
    slots: int
    places: Mapping[tuple[int, int], WordPlace]

    def encode(self) -> dict[str, Any]:
        """The value for `kv_transfer_params[WORD_KEY]`.

        Numbers of 64 bits are text: whoever passes JSON on may round numbers above 2**53.
        """
        return {
            "slot": self.slot,
            "slots": self.slots,
            "ranks": {
                f"{pipeline}-{tensor}": [hex(place.table), hex(place.value)]
                for (pipeline, tensor), place in self.places.items()
            },
        }

    @classmethod
    def decode(cls, params: Mapping[str, Any] | None) -> "Word | None":
        """The word in a handle's `kv_transfer_params`, or None if it has none or a broken one."""
        value = (params or {}).get(WORD_KEY)
        if not isinstance(value, Mapping):
            return None
        slot, slots, ranks = value.get("slot"), value.get("slots"), value.get("ranks")
        if not (_is_whole(slot) and _is_whole(slots) and isinstance(ranks, Mapping) and ranks):
            return None
        if not 0 <= slot < slots <= _MOST_SLOTS:
            return None
        try:
            return cls(slot, slots, {_rank(name): _place(place) for name, place in ranks.items()})
        except (TypeError, ValueError):
            return None


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _rank(name: str) -> tuple[int, int]:
    pipeline, tensor = name.split("-")
    return int(pipeline), int(tensor)


def _place(value: Any) -> WordPlace:
    if not (isinstance(value, list) and len(value) == _PLACE_PARTS):
        raise ValueError("a word's place has a table and a value")
    table, expected = (int(part, 16) for part in value)
    if not (0 < table <= _MOST and 0 <= expected <= _MOST):
        raise ValueError("a word's place is out of bounds")
    return WordPlace(table, expected)
