import grpc
import pytest

from kvplane.client.errors import error_of
from kvplane_services import errors
from kvplane_services.adapters.grpc_failures import domain_error
from kvplane_services.grpc_errors import status_of


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("m", field="f"),
        errors.NotFound("m", model="x"),
        errors.AlreadyExists("m"),
        errors.FailedPrecondition("m"),
        errors.LeaseFenced("m"),
        errors.EpochStale("m"),
        errors.EngineIncompatible("m"),
        errors.StrategyImpossible("m", strategy="pull"),
        errors.Conflict("m"),
        errors.Saturated("m", retry_after=2.5),
        errors.Unavailable("m", retry_after=2.5),
        errors.WatchTooOld("m"),
        errors.KvplaneError("m"),
    ],
)
def test_domain_errors_survive_the_wire(error: errors.KvplaneError) -> None:
    """What one process raises is what the other one sees, with its words and facts."""
    status = status_of(error)
    code = next(one for one in grpc.StatusCode if one.value[0] == status.code)
    again = domain_error(
        error_of(
            code.name,
            status.message,
            reason=error.reason,
            retry_after=getattr(error, "retry_after", None),
            metadata=error.metadata,
        )
    )
    assert type(again) is type(error)
    assert (again.message, again.metadata) == (error.message, error.metadata)
    assert getattr(again, "retry_after", None) == getattr(error, "retry_after", None)


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (errors.GuardFailed("m", key="k"), errors.Conflict),
        (errors.TooLarge("m", key="k"), errors.InvalidRequest),
        (errors.StoreRefused("m", key="k"), errors.Unavailable),
    ],
)
def test_what_is_wrong_with_the_store_matters_to_its_process_only(
    error: errors.KvplaneError, elsewhere: type[errors.KvplaneError]
) -> None:
    """Callers elsewhere are told what they can do about it: retry, ask for less, or wait."""
    status = status_of(error)
    code = next(one for one in grpc.StatusCode if one.value[0] == status.code)
    again = domain_error(
        error_of(code.name, status.message, reason=error.reason, metadata=error.metadata)
    )
    assert type(again) is elsewhere
    assert (again.message, again.metadata) == ("m", {"key": "k"})


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED"])
def test_no_answer_is_unavailable(code: str) -> None:
    """A process that is not there, or too slow, is unavailable, with a time to retry."""
    error = domain_error(error_of(code, "m"))
    assert isinstance(error, errors.Unavailable)
    assert error.retry_after > 0
