"""What one request computes in a step: the KV of its next tokens, and the token that follows."""

from dataclasses import dataclass

from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.model import Attention
from kvplane_services.sim.request import FinishReason, Request
from kvplane_services.sim.tokenizer import EOS, decode


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token, and whether the reply ends with it; `stop_reason` is the text that ended it."""

    token: int
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None


def compute(request: Request, count: int, *, pool: BlockPool, seed: int) -> bool:
    """Computes the KV of the next `count` tokens; True if all tokens have theirs now."""
    tokens = request.tokens
    if request.attention is None:
        request.attention = Attention.start(seed=seed)
        request.attention.read(pool.read(request.block_ids, request.computed))
    start, end = request.computed, request.computed + count
    pool.write(request.block_ids, start, request.attention.compute(tokens[start:end]))
    request.computed = end
    if start // pool.block_size != end // pool.block_size:
        pool.remember(request.block_ids, tokens[:end], request.context)
    return end == len(tokens)


def sample(request: Request, *, max_model_len: int) -> Sampled:
    """Appends the token that follows. All tokens must have been computed."""
    if request.attention is None:
        raise ValueError("nothing was computed")
    sampling = request.sampling
    long_enough = request.output_length + 1 > sampling.min_tokens
    # No reply ends before it began: that would tell a reader nothing.
    may_end = long_enough and request.output_length > 0 and not sampling.ignore_eos
    token = request.attention.next_token(may_end=may_end)
    request.tokens.append(token)
    request.text += decode([token])
    if token == EOS:
        return Sampled(token, FinishReason.STOP)
    stops = sampling.stop if long_enough else ()
    for stop in stops:
        if stop in request.text:
            return Sampled(token, FinishReason.STOP, stop)
    if request.output_length >= sampling.max_tokens or len(request.tokens) >= max_model_len:
        return Sampled(token, FinishReason.LENGTH)
    return Sampled(token)
