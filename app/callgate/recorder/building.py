"""Builds the recorder, and what decides what it records."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from callgate.callers.exposure import is_alone
from callgate.config.schema.whole import Config
from callgate.recorder.recorder import Recorder
from callgate.recorder.rules import RecordingRules
from callgate.recorder.run_news import RunNews
from callgate.recorder.tracing import Tracing
from callgate.records.ports import RunRecorder
from callgate.telemetry import logs
from callgate.telemetry.metrics import Metrics


class WithRecorder:
    """Builds what records runs."""

    def recorder(self, config: Config, metrics: Metrics) -> Recorder:
        """Build the recorder of runs, which writes where there is a `data_dir`."""
        folder = None if config.data_dir is None else Path(config.data_dir)
        return Recorder(logs.masked, folder, metrics.runs_dropped.inc, metrics.used, logs.mask_of_now)

    def rules(self, config: Config, recorder: RunRecorder) -> RecordingRules:
        return RecordingRules(
            config.record,
            keeps_texts=recorder_behind(recorder).keeps_texts,
            is_for_one_person=is_for_one_person(config),
        )

    def spans(self, metrics: Metrics, recorder: RunRecorder) -> Tracing:
        return Tracing(metrics, recorder_behind(recorder))

    def news(self, recorder: RunRecorder, publish: Callable[[str], Awaitable[bool]]) -> RunNews:
        return RunNews(recorder_behind(recorder), publish)


def is_for_one_person(config: Config) -> bool:
    """Return whether only people at this machine reach a server, and need no key there."""
    server = config.server
    is_open_here = is_alone(server.host, config.auth.mode, server.public_url, server.allowed_hosts)
    return is_open_here and not config.keys_and_issuers()


def recorder_behind(port: RunRecorder) -> Recorder:
    """Return the recorder itself, which can be read as well."""
    assert isinstance(port, Recorder), "it was put in with all that reads it"
    return port
