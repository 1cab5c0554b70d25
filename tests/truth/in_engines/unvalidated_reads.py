"""A planted fault: what was read is taken for good, whether or not it was kept meanwhile."""

from typing import Any
from unittest import mock

from kvplane_connector.validated_reads import ValidatedReads, Verdict
from tests.support.in_engines.held_reads import KvplaneConnector as Connector

_check = ValidatedReads.check


def _trusting(reads: ValidatedReads, *args: Any) -> Verdict:
    verdict = _check(reads, *args)
    return Verdict.ACCEPTED if verdict is Verdict.REFUSED else verdict


class KvplaneConnector(Connector):
    """See the module."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        mock.patch.object(ValidatedReads, "check", _trusting).start()
        super().__init__(vllm_config, role, kv_cache_config)
