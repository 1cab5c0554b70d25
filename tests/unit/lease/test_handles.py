"""Handles are kept small and given back as they came."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane.digest import chain_of, context_of
from kvplane.transfer_params import encode_proof
from kvplane_services.lease.model import DigestChain, Handle

texts = st.one_of(
    st.binary(max_size=400),
    st.binary(max_size=40).map(lambda text: b"\xff" + text),
    st.lists(st.integers(0, 20_000), max_size=200).map(lambda ids: json.dumps([ids]).encode()),
)
chains = st.one_of(
    st.none(),
    st.builds(
        DigestChain,
        st.text(max_size=20),
        st.integers(),
        st.integers(),
        st.one_of(
            st.lists(st.binary(max_size=16), max_size=8).map(tuple),
            st.lists(st.binary(min_size=16, max_size=16), max_size=8).map(tuple),
        ),
    ),
)


@given(texts, chains)
def test_whatever_came_is_given_back(params: bytes, chain: DigestChain | None) -> None:
    """Parameters and digests are the bytes that they were, and equal handles are equal."""
    handle = Handle(params, chain)
    assert handle.kv_transfer_params == params
    assert handle.digests == chain
    assert handle == Handle(params, chain)
    assert hash(handle) == hash(Handle(params, chain))
    assert handle != Handle(params + b"x", chain)


@given(st.lists(st.binary(max_size=20), max_size=8).map(tuple))
def test_digests_of_any_sizes_are_given_back(digests: tuple[bytes, ...]) -> None:
    """A chain that no connector makes is kept as well."""
    assert DigestChain("a", 64, 512, digests).digests == digests


@pytest.mark.parametrize("tokens", [64, 2048, 32_768])
def test_a_handle_takes_a_third_of_its_text(tokens: int) -> None:
    """Its digests are there once, and block ids take two bytes each."""
    proof = chain_of(range(tokens), context_of())
    blocks = [(block * 7919) % 16_384 for block in range(tokens // 16)]
    params = {
        "remote_block_ids": [blocks],
        "remote_request_id": "r",
        "kvplane": encode_proof(proof),
    }
    text = json.dumps(params, separators=(",", ":")).encode()
    handle = Handle(
        text, DigestChain(proof.algorithm, proof.chunk_tokens, proof.tokens, proof.digests)
    )
    assert handle.digests is not None
    kept = sys.getsizeof(handle._packed) + sys.getsizeof(handle.digests._digests)
    assert kept < 0.6 * len(text) + 200
    assert handle.kv_transfer_params == text
