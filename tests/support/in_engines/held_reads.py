"""Runs inside a real engine: the connector, with reads that a test can hold up or tear.

"held_reads" of `kv_connector_extra_config` names a folder, and files in it say what to do:

- `held`: while it exists, the engine stands still between deciding to read and reading, as one
  that is stopped there or swapped out; it makes the file `reached` then;
- `pauses`: seconds as JSON: "before" data is read, "within", after its first half, and "after"
  it, before the owner's word is read;
- `trusting`: while it exists, what a word refuses is used all the same.

Each verdict that words gave is a line of the file `verdicts` there, with the seconds it took.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplane_connector.connector import KvplaneConnector as Connector
from kvplane_connector.validated_reads import Verdict
from kvplane_connector.vllm_names import KVConnectorRole


class KvplaneConnector(Connector):
    """See the module."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_worker is None:
            return
        extra_config = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._folder = folder = Path(extra_config["held_reads"])
        # As text: looking is then a system call each, and next to no time where time is taken.
        held, pausing = str(folder / "held"), str(folder / "pauses")
        wrapper = self.connector_worker.nixl_wrapper
        transfer, make = wrapper.transfer, wrapper.make_prepped_xfer

        words: list[Any] = []

        def transfer_unless_held(made: Any, *args: Any, **kwargs: Any) -> Any:
            while os.path.exists(held):  # noqa: PTH110 - see above
                (folder / "reached").touch()
                _stand_still(0.02)
            if made in words:
                words.remove(made)
                _stand_still(_pauses(pausing).get("after", 0))
            return transfer(made, *args, **kwargs)

        def make_with_pauses(
            kind: str, to: Any, here: Any, of: Any, there: Any, **kwargs: Any
        ) -> Any:
            if len(here) == 1:
                # A word, made before its data is read: data is a block of each layer at least.
                words.append(make(kind, to, here, of, there, **kwargs))
                return words[-1]
            pauses = _pauses(pausing)
            _stand_still(pauses.get("before", 0))
            if seconds := pauses.get("within", 0):
                half = len(here) // 2
                first = make(kind, to, here[:half], of, there[:half])
                state = transfer(first)
                while state == "PROC":
                    state = wrapper.check_xfer_state(first)
                wrapper.release_xfer_handle(first)
                here, there = here[half:], there[half:]
                _stand_still(seconds)
            return make(kind, to, here, of, there, **kwargs)

        wrapper.transfer, wrapper.make_prepped_xfer = transfer_unless_held, make_with_pauses

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """See vLLM."""
        super().register_kv_caches(kv_caches)
        folder, reads = self._folder, getattr(self.connector_worker, "_reads", None)
        if reads is None:
            return
        check = reads.check

        def check_and_tell(name: str, transfers: Any) -> Verdict:
            verdict: Verdict = check(name, transfers)
            if verdict is Verdict.PENDING:
                return verdict
            with (folder / "verdicts").open("a") as told:
                told.write(f"{verdict.name} {reads.seconds}\n")
            trusting = verdict is Verdict.REFUSED and (folder / "trusting").exists()
            return Verdict.ACCEPTED if trusting else verdict

        reads.check = check_and_tell


def _pauses(path: str) -> Mapping[str, float]:
    if not os.path.exists(path):  # noqa: PTH110 - see above
        return {}
    found: Mapping[str, float] = json.loads(Path(path).read_text())
    return found


def _stand_still(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)  # noqa: TID251 - and its engine with it
