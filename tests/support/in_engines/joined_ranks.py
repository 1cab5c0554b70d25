"""Runs under the engines' python: what vLLM makes of the news of two tensor ranks.

Prints, for each step, what the scheduler hears, as JSON.
"""

import json
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from kvplane_connector.step_orders import StepNews

ranks = KVOutputAggregator(2)


def step(*told: tuple[set[str], StepNews | None]) -> dict[str, Any]:
    """What the scheduler hears of a step, of which each rank tells this."""
    outputs = [
        ModelRunnerOutput(
            req_ids=[],
            req_id_to_index={},
            kv_connector_output=KVConnectorOutput(
                finished_sending=over, kv_connector_worker_meta=news
            ),
        )
        for over, news in told
    ]
    heard = ranks.aggregate(outputs).kv_connector_output
    news = heard.kv_connector_worker_meta
    return {
        "over": sorted(heard.finished_sending or ()),
        "reads": news.reads if news is not None else {},
        "applied": news.applied if news is not None else {},
    }


steps = [
    step(
        (set(), StepNews(reads={"it": 1}, applied={"it": 9.0, "other": 9.0})),
        (set(), StepNews(reads={"it": 2}, applied={"it": 8.0})),
    ),
    step((set(), None), (set(), StepNews(reads={"it": 3}))),
    step(({"it"}, None), (set(), None)),
    step((set(), None), ({"it"}, None)),
]
print(json.dumps(steps))  # noqa: T201 - the answer
