"""Makes the texts of handles small. A plane holds one for every lease, and most are alike."""

import base64
import zlib

# What every handle says, in the connector's words: deflate starts out knowing it.
_KNOWN = (
    b'0123456789abcdef-4000-8000-"remote_prefill_cached_tokens":,"tp_size":1,"dcp_size":1,'
    b'"pp_size":1,"remote_host":"127.0.0.1","remote_port":5600,"transfer_mode":"pull",'
    b'"remote_blocks_expiry_time":null,"remote_num_tokens":,"remote_engine_id":"",'
    b'"remote_request_id":"chatcmpl-","kvplane":{"algorithm":"blake2b-128/1","chunk_tokens":64,'
    b'"tokens":,"digests":"","digest_bytes":16,"block_size":16}}{"do_remote_prefill":true,'
    b'"do_remote_decode":false,"remote_block_ids":[['
)
_LEVEL = 6
# Larger windows and tables take longer to set up than they save on a few kilobytes.
_WINDOW = -11
_MEMORY = 4
# Shorter texts do not get smaller.
_SHORT = 32
# What packed bytes begin with.
_MARK = b"\xff"


def packed(text: bytes) -> bytes:
    """A text made small. The same text always gives the same bytes."""
    if len(text) < _SHORT and not text.startswith(_MARK):
        return text
    squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=_KNOWN)
    return _MARK + squeeze.compress(text) + squeeze.flush()


def unpacked(small: bytes) -> bytes:
    """The text of `packed`."""
    if not small.startswith(_MARK):
        return small
    widen = zlib.decompressobj(_WINDOW, zdict=_KNOWN)
    return widen.decompress(small[1:]) + widen.flush()


def without(text: bytes, data: bytes) -> tuple[bytes, int]:
    """A text with the base64 of `data` taken out, and where it was; as it is, and -1, if not in."""
    encoded = base64.b64encode(data)
    place = text.find(encoded) if data else -1
    return (text, place) if place < 0 else (text[:place] + text[place + len(encoded) :], place)


def joined(text: bytes, data: bytes, place: int) -> bytes:
    """The text that `without` was given."""
    return text if place < 0 else text[:place] + base64.b64encode(data) + text[place:]
