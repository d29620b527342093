"""Exports spans of requests as configured. The exporter is imported only where spans are sent."""

from typing import TYPE_CHECKING

from callgate import __version__
from callgate.config.schema.whole import Config
from callgate.recorder.recorder import Recorder
from callgate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from callgate.recorder.exporter import SpanExporter
    from callgate.recorder.tracer import Tracer


class Tracing:
    """The exporter of the process, whose queue stays across a reload."""

    def __init__(self, metrics: Metrics, recorder: Recorder) -> None:
        self._metrics = metrics
        self._recorder = recorder
        self._exporter: SpanExporter | None = None

    def use(self, config: Config) -> "Tracer | None":
        """Make the tracer of requests; None where spans are not exported."""
        section = config.traces
        if section.endpoint is None:
            return None  # earlier spans are still sent to their collector
        from callgate.recorder.exporter import Target
        from callgate.recorder.spans import SpanOptions
        from callgate.recorder.tracer import Sampling, Tracer

        target = Target(
            section.endpoint,
            {name: value.get_secret_value() for name, value in section.headers.items()},
            section.timeout_seconds,
            section.compression == "gzip",
        )
        if self._exporter is None:
            from callgate.http.client import HttpClient
            from callgate.http.proxies import Proxies
            from callgate.recorder.exporter import SpanExporter

            # The client certificate for providers is not used for a collector.
            self._exporter = SpanExporter(
                HttpClient(proxies=Proxies.from_environment()),
                target,
                self._metrics.spans_exported.inc,
                lambda spans, why: self._metrics.spans_dropped.of(why).inc(spans),
            )
        self._exporter.target = target
        content = section.content
        options = SpanOptions(
            in_spans=content in {"span_only", "span_and_event"},
            in_events=content in {"event_only", "span_and_event"},
            latest_names=section.latest_names,
        )
        sampling = Sampling(section.sample, section.follow_parent)
        # Attributes of all spans.
        own = {
            "service.name": section.service_name,
            "service.version": __version__,
            "service.instance.id": self._recorder.process,
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "callgate",
        }
        tracer = Tracer(self._exporter, sampling, options, {**own, **section.resource}, __version__)
        self._recorder.writer.export = tracer.export
        return tracer

    async def close(self) -> None:
        """Send the queued spans, with a short timeout."""
        if self._exporter is not None:
            await self._exporter.close()
