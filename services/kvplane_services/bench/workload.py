"""What the benchmark's engines retain: turns with handles as large as real ones."""

import base64
import json
import random
import uuid

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.digest import ALGORITHM, CHUNK_TOKENS
from kvplane.transfer_params import KEY

MODEL = "m"
_TENANT = "bench"
_BLOCK_TOKENS = 16
_DIGEST_BYTES = 16
# Lists of block ids to take turns with: making one per retention takes longer than sending it.
_LISTS = 512
_EXPIRY = "remote_blocks_expiry_time"


class Workload:
    """Retentions by session and turn; the same numbers give the same retention.

    Handles are `kv_transfer_params` as the connector writes them, with the digest chain of as
    many tokens, and are no two alike.

    Args:
        tokens: Tokens of each session's history.

    """

    def __init__(self, *, tokens: int) -> None:
        self._tokens = tokens
        self._blocks = -(-tokens // _BLOCK_TOKENS)
        self._digests = -(-tokens // CHUNK_TOKENS)
        picks = random.Random(0)  # noqa: S311 - made-up block ids
        self._block_ids = [
            json.dumps(
                [picks.sample(range(self._blocks * 8 + 100), self._blocks)], separators=(",", ":")
            )
            for _ in range(_LISTS)
        ]
        self._engine_id = str(uuid.uuid4())

    @property
    def blocks(self) -> int:
        """KV blocks of one retention."""
        return self._blocks

    @property
    def handle_bytes(self) -> int:
        """Size of one handle on the wire."""
        return self.retention(0, 0).handle.ByteSize()

    def retention(self, session: int, turn: int, *, expiry: float = 0.0) -> engine_pb2.Retention:
        """What a session's turn leaves; `expiry` is what its handle says."""
        random_bytes = random.Random(session << 20 | turn).randbytes  # noqa: S311 - made-up digests
        joined = random_bytes(self._digests * _DIGEST_BYTES)
        message = engine_pb2.Retention(
            retention_id=retention_id(session, turn),
            session_key=session_pb2.SessionKey(
                tenant=_TENANT, model=MODEL, session_id=f"session-{session:08d}"
            ),
            decision_id=random_bytes(16).hex(),
            tokens=self._tokens,
            blocks=self._blocks,
            handle=lease_pb2.Handle(
                kv_transfer_params=self._params(session, turn, joined, expiry),
                digests=lease_pb2.DigestChain(
                    algorithm=ALGORITHM,
                    chunk_tokens=CHUNK_TOKENS,
                    tokens=self._tokens,
                    digests=[
                        joined[start : start + _DIGEST_BYTES]
                        for start in range(0, len(joined), _DIGEST_BYTES)
                    ],
                ),
            ),
            message_digest=random_bytes(16),
        )
        message.remaining.seconds = 30
        return message

    def _params(self, session: int, turn: int, digests: bytes, expiry: float) -> bytes:
        return (
            '{"do_remote_prefill":true,"do_remote_decode":false,'
            f'"remote_block_ids":{self._block_ids[(session + turn) % _LISTS]},'
            f'"remote_engine_id":"{self._engine_id}",'
            f'"remote_request_id":"{retention_id(session, turn)}",'
            '"remote_host":"10.20.30.40","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,'
            f'"remote_num_tokens":{self._tokens},"{_EXPIRY}":{expiry},"transfer_mode":"pull",'
            f'"{KEY}":{{"algorithm":"{ALGORITHM}","chunk_tokens":{CHUNK_TOKENS},'
            f'"tokens":{self._tokens},"digests":"{base64.b64encode(digests).decode()}",'
            f'"digest_bytes":{_DIGEST_BYTES},"block_size":{_BLOCK_TOKENS}}}}}'
        ).encode()


def retention_id(session: int, turn: int) -> str:
    """Name of what a turn leaves, of the form that vLLM's request ids have."""
    return f"chatcmpl-{session:08x}-{turn:04x}-4000-8000-{session:012x}-0-{turn:08x}"


def session_of(retention: str) -> tuple[int, int]:
    """Session and turn of a retention's name."""
    _, session, turn, *_ = retention.split("-")
    return int(session, 16), int(turn, 16)
