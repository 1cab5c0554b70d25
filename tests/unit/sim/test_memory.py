from kvplane.transfer_params import KEY, LOCAL_ONLY
from kvplane_services.sim.config import EngineShape
from tests.unit.sim.lab import MARK, Lab, Running, finish

SHAPE = EngineShape(blocks=24, block_size=4, max_model_len=1000, prefix_caching=False)
TURN = {**LOCAL_ONLY, KEY: MARK.encode()}


async def test_nothing_is_retained_while_a_request_waits_for_blocks() -> None:
    """Turns that come one after the other do not each wait for the last one's lease."""
    lab = Lab()
    engine = lab.engine("d", shape=SHAPE)
    began = lab.clock.now()
    async with Running(engine):
        turns = [
            engine.submit([*range(50), n], max_tokens=4, name=str(n), params=TURN) for n in range(3)
        ]
        for turn in turns:
            await finish(lab.clock, turn)

        assert lab.clock.now() - began < 5.0
        # Nobody waited any more when the last one finished.
        assert [one.retention_id for one in engine.retentions] == [turns[2].request_id]
