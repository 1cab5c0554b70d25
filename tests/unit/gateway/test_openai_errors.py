import pytest

from kvplane_services import errors
from kvplane_services.gateway.openai_errors import from_domain


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidRequest("m", field="model"), 400, "invalid_request"),
        (errors.NotFound("m"), 404, "model_not_found"),
        (errors.FailedPrecondition("m"), 409, "failed_precondition"),
        (errors.Conflict("m"), 409, "conflict"),
        (errors.GuardFailed("m"), 409, "conflict"),
        (errors.TooLarge("m"), 413, "too_large"),
        (errors.Saturated("m", retry_after=2), 429, "saturated"),
        (errors.Unavailable("m", retry_after=2), 503, "unavailable"),
        (errors.StoreRefused("m"), 503, "store_refused"),
        (errors.KvplaneError("m"), 500, "internal"),
    ],
)
def test_domain_errors_as_answers(error: errors.KvplaneError, status: int, code: str) -> None:
    """Each domain error has a status of HTTP, and its reason as the code."""
    answer = from_domain(error)

    assert (answer.status, answer.code, answer.message) == (status, code, "m")
    assert answer.retry_after == getattr(error, "retry_after", None)
