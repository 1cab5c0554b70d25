from types import SimpleNamespace

from kvplane_connector.load_meter import LoadMeter


def test_requests_are_running_or_waiting() -> None:
    """Those in the last step run, the others wait; who left counts no more."""
    load = LoadMeter()
    for name in ("a", "b", "c"):
        load.arrived(name)
    load.scheduled(2)

    assert (load.running_requests, load.waiting_requests) == (2, 1)
    for name in ("a", "b", "c"):
        load.left(name)
    assert (load.running_requests, load.waiting_requests) == (0, 0)


def test_a_request_that_got_no_blocks_lacks_them() -> None:
    """Offered and not placed in the last step: it waits for memory, until it is placed or goes."""
    load = LoadMeter()
    load.offered("a")
    load.placed("a")
    load.offered("b")
    assert not load.lacks_blocks
    load.scheduled(1)
    assert load.lacks_blocks

    load.offered("b")
    load.placed("b")
    load.scheduled(2)
    assert not load.lacks_blocks

    load.offered("c")
    load.scheduled(2)
    load.left("c")
    assert not load.lacks_blocks


def test_the_null_block_is_not_counted() -> None:
    """vLLM's stand-in block is neither capacity nor in use."""
    load = LoadMeter()
    assert (load.total_blocks, load.used_blocks) == (0, 0)

    load.bind(SimpleNamespace(num_gpu_blocks=400, get_num_free_blocks=lambda: 390))

    assert (load.total_blocks, load.used_blocks) == (399, 9)
