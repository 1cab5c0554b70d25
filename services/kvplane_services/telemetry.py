"""Metrics for Prometheus and traces in the W3C format, by OpenTelemetry.

Metrics live in a registry of their own and cost no network: something scrapes them. Spans are
recorded only if they are exported somewhere; without that, the trace context of the caller is
passed on unchanged.
"""

import importlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation, UpDownCounter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from kvplane_services.errors import InvalidRequest

# Seconds. From a local prefix hit to a long prompt behind a queue.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Telemetry:
    """The instruments of one process.

    Args:
        service_name: Names the process in traces and metrics.
        span_exporter: Where finished spans go; without one none are recorded.

    """

    METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST

    def __init__(
        self, *, service_name: str = "kvplane", span_exporter: SpanExporter | None = None
    ) -> None:
        resource = Resource.create({SERVICE_NAME: service_name})
        self._registry = CollectorRegistry()
        self._meters = MeterProvider(
            resource=resource,
            metric_readers=[
                PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
            ],
            views=[
                View(
                    instrument_unit="s",
                    aggregation=ExplicitBucketHistogramAggregation(boundaries=_SECONDS),
                )
            ],
            # The process ends its instruments itself, in `close`.
            shutdown_on_exit=False,
        )
        self._tracers: TracerProvider | None = None
        tracers: trace.TracerProvider = trace.NoOpTracerProvider()
        if span_exporter is not None:
            self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._tracers.add_span_processor(BatchSpanProcessor(span_exporter))
            tracers = self._tracers
        self._tracer = tracers.get_tracer("kvplane")
        self._propagator = TraceContextTextMapPropagator()

    def counter(self, name: str, description: str, *, unit: str = "1") -> Counter:
        """A number that only grows."""
        return self._meters.get_meter("kvplane").create_counter(name, unit, description)

    def gauge(self, name: str, description: str, *, unit: str = "1") -> UpDownCounter:
        """A number of things that are there right now."""
        return self._meters.get_meter("kvplane").create_up_down_counter(name, unit, description)

    def observed(self, name: str, description: str, read: Callable[[], float]) -> None:
        """A number that somebody else keeps: `read` is called whenever metrics are rendered."""

        def observe(_: CallbackOptions) -> tuple[Observation]:
            return (Observation(read()),)

        meter = self._meters.get_meter("kvplane")
        # Without a unit: Prometheus' names would call a gauge of unit 1 a ratio.
        meter.create_observable_gauge(name, [observe], description=description)

    def tallied(
        self, name: str, description: str, label: str, read: Callable[[], Mapping[str, int]]
    ) -> None:
        """Numbers that only grow and that somebody else keeps, one for each value of the label."""

        def observe(_: CallbackOptions) -> list[Observation]:
            return [Observation(count, {label: value}) for value, count in read().items()]

        meter = self._meters.get_meter("kvplane")
        meter.create_observable_counter(name, [observe], description=description)

    def seconds(self, name: str, description: str) -> Histogram:
        """A distribution of durations, in seconds."""
        return self._meters.get_meter("kvplane").create_histogram(name, "s", description)

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, str | int] | None = None) -> Generator[None]:
        """Runs a block inside a child of the current span."""
        with self._tracer.start_as_current_span(name, attributes=dict(attributes or {})):
            yield

    @contextmanager
    def continued(self, name: str, headers: Mapping[str, str]) -> Generator[None]:
        """Runs a block inside a span that continues the trace of `headers`, if they carry one."""
        carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        with self._tracer.start_as_current_span(name, context=self._propagator.extract(carrier)):
            yield

    def trace_headers(self) -> dict[str, str]:
        """The headers that let whoever is called continue the current trace."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers)
        return headers

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Sends what is left of the traces, and ends."""
        if self._tracers is not None:
            self._tracers.shutdown()
        self._meters.shutdown()


def otlp_exporter(endpoint: str) -> SpanExporter:
    """Sends spans to an OpenTelemetry collector by HTTP.

    Args:
        endpoint: For example `http://127.0.0.1:4318/v1/traces`.

    Raises:
        InvalidRequest: The standard exporter is not installed.

    """
    # By its name, because it is an option that nothing else here needs.
    try:
        module = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            "exporting traces needs a package that is not installed: "
            "pip install opentelemetry-exporter-otlp-proto-http",
            field="otlp_endpoint",
        ) from error
    exporter: SpanExporter = module.OTLPSpanExporter(endpoint=endpoint)
    return exporter
