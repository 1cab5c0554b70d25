"""Which blocks a request gets, and what it reads into them from another engine."""

from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.request import PromptSources, Request
from kvplane_services.sim.transfers import RemoteRead, plan_read


def place(request: Request, *, pool: BlockPool, stock: bool) -> RemoteRead | None:
    """Gives a request its first blocks; returns the read that its parameters ask for, if any.

    A read without blocks has nothing to wait for: its owner is only to be told.

    Raises:
        OutOfBlocks: Too few blocks are free. Nothing was changed.

    """
    shared = pool.find(request.tokens, request.context)
    cached = external = len(shared) * pool.block_size
    needed = blocks_for(len(request.tokens), pool)
    read: RemoteRead | None = None
    if request.params and not request.read_tried:
        read = plan_read(request, cached_tokens=cached, block_size=pool.block_size, stock=stock)
    if read is not None and read.block_ids:
        needed = blocks_for(read.tokens, pool)
        external = read.tokens
    request.block_ids = pool.take(needed - len(shared), shared=shared)
    request.computed = cached
    request.read_tried = request.read_tried or read is not None
    if not request.preempted:
        prompt = len(request.prompt)
        request.sources = PromptSources(prompt - external, cached, external - cached)
    return read


def grow(request: Request, *, pool: BlockPool) -> None:
    """Gives a request the blocks that its tokens need by now. Raises OutOfBlocks."""
    needed = blocks_for(len(request.tokens), pool)
    request.block_ids += pool.take(max(0, needed - len(request.block_ids)))


def vacate(request: Request, *, pool: BlockPool) -> None:
    """Takes a request's blocks, and what was computed into them, away."""
    pool.release(request.block_ids)
    request.block_ids = []
    request.computed = 0
    request.attention = None


def blocks_for(tokens: int, pool: BlockPool) -> int:
    """Blocks that so many tokens need."""
    return -(-tokens // pool.block_size)
