from types import SimpleNamespace

from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.load_meter import LoadMeter


def test_requests_are_running_or_waiting() -> None:
    """Those in the last step run, the others wait; who left counts no more."""
    load = LoadMeter(KvBlocks())
    for name in ("a", "b", "c"):
        load.arrived(name)
    load.scheduled(2)

    assert (load.running_requests, load.waiting_requests) == (2, 1)
    for name in ("a", "b", "c"):
        load.left(name)
    assert (load.running_requests, load.waiting_requests) == (0, 0)


def test_the_null_block_is_not_counted() -> None:
    """vLLM's stand-in block is neither capacity nor in use."""
    blocks = KvBlocks()
    load = LoadMeter(blocks)
    assert (load.total_blocks, load.used_blocks) == (0, 0)

    blocks.bind(SimpleNamespace(num_gpu_blocks=400, get_num_free_blocks=lambda: 390))

    assert (load.total_blocks, load.used_blocks) == (399, 9)
