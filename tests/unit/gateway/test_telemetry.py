import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvplane_services.errors import InvalidRequest
from kvplane_services.telemetry import Telemetry, otlp_exporter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_context_is_passed_on_without_an_exporter() -> None:
    """Nothing is recorded, and the caller's trace goes on unchanged; without one there is none."""
    telemetry = Telemetry()
    with telemetry.continued("turn", {"traceparent": PARENT}), telemetry.span("decode"):
        assert telemetry.trace_headers() == {"traceparent": PARENT}
    with telemetry.continued("turn", {}):
        assert telemetry.trace_headers() == {}
    telemetry.close()


def test_spans_continue_the_callers_trace() -> None:
    """With an exporter each span is a child of the one around it, in the caller's trace."""
    spans = InMemorySpanExporter()
    telemetry = Telemetry(span_exporter=spans)
    with telemetry.continued("turn", {"traceparent": PARENT}), telemetry.span("decode"):
        header = telemetry.trace_headers()["traceparent"]
    telemetry.close()

    decode, turn = spans.get_finished_spans()
    assert (turn.name, decode.name) == ("turn", "decode")
    assert turn.parent is not None
    assert f"{turn.parent.span_id:016x}" == PARENT.split("-")[2]
    assert decode.parent is not None
    assert turn.context is not None
    assert decode.context is not None
    assert decode.parent.span_id == turn.context.span_id
    assert header.split("-")[1:3] == [
        f"{decode.context.trace_id:032x}",
        f"{decode.context.span_id:016x}",
    ]


def test_two_telemetries_do_not_meet() -> None:
    """Each has a registry of its own, so that tests and processes cannot disturb each other."""
    one, other = Telemetry(), Telemetry()
    one.counter("kvplane.turns", "Turns").add(2)

    assert b"kvplane_turns_total 2.0" in one.render()
    assert b"kvplane_turns_total" not in other.render()
    one.close()
    other.close()


def test_missing_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for export without the package says which one to install."""
    hidden = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(InvalidRequest, match="pip install opentelemetry-exporter-otlp-proto-http"):
        otlp_exporter("http://127.0.0.1:4318/v1/traces")


def test_observed_numbers_are_read_when_they_are_shown() -> None:
    """A gauge shows what its owner says at that moment, under its name alone."""
    telemetry = Telemetry()
    held = [3]
    telemetry.observed("kvplane.store.pending_writes", "Waiting", lambda: held[0])

    assert b"\nkvplane_store_pending_writes 3.0\n" in telemetry.render()
    held[0] = 0
    assert b"\nkvplane_store_pending_writes 0.0\n" in telemetry.render()
    telemetry.close()
