from types import SimpleNamespace

from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.load_meter import LoadMeter


def test_requests_run_once_they_have_blocks() -> None:
    """Whether they compute or wait for a read; those without blocks wait, and who left is gone."""
    load = LoadMeter(KvBlocks())
    for name in ("a", "b", "c"):
        load.arrived(name)
        load.asked(name)
    load.placed("a")
    load.placed("b")

    assert (load.running_requests, load.waiting_requests, load.present_requests) == (2, 1, 3)
    for name in ("a", "b", "c"):
        load.left(name)
    assert (load.running_requests, load.waiting_requests, load.present_requests) == (0, 0, 0)


def test_a_request_that_lost_its_blocks_waits_again() -> None:
    """vLLM asks about it once more; about one that has left it changes nothing."""
    load = LoadMeter(KvBlocks())
    load.arrived("a")
    load.placed("a")

    load.asked("a")
    load.asked("gone")

    assert (load.running_requests, load.waiting_requests) == (0, 1)


def test_the_null_block_is_not_counted() -> None:
    """vLLM's stand-in block is neither capacity nor in use."""
    blocks = KvBlocks()
    load = LoadMeter(blocks)
    assert (load.total_blocks, load.used_blocks) == (0, 0)

    blocks.bind(SimpleNamespace(num_gpu_blocks=400, get_num_free_blocks=lambda: 390))

    assert (load.total_blocks, load.used_blocks) == (399, 9)
