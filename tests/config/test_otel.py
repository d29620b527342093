"""OpenTelemetry's standard variables: what they mean, what counts where the file speaks too, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from callgate.config.load import Loaded, load
from callgate.config.problems import ConfigError

MODELS = "model_list: [{model_name: demo, litellm_params: {model: demo/demo}}]\n"
BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318/"}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(environ: dict[str, str], block: str = "") -> Loaded:
        file = tmp_path / "config.yaml"
        file.write_text(MODELS + block)
        return load(file, environ=environ)

    return read


def test_without_an_address_the_others_mean_other_programs(read: Any) -> None:
    environ = {"OTEL_SERVICE_NAME": "shop", "OTEL_TRACES_SAMPLER": "nonsense", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    traces = read(environ).config.traces
    assert (traces.endpoint, traces.service_name) == (None, "callgate")


def test_an_address_for_all_signals_is_a_base_and_one_for_traces_is_meant_as_it_is(read: Any) -> None:
    assert read(BASE).config.traces.endpoint == "http://localhost:4318/v1/traces"
    of_traces = {**BASE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:9/in"}
    assert read(of_traces).config.traces.endpoint == "http://localhost:9/in"
    assert (
        read({}, "traces: {endpoint: 'http://localhost:4318'}").config.traces.endpoint
        == "http://localhost:4318/v1/traces"
    )


def test_every_variable_has_its_setting(read: Any) -> None:
    loaded = read(
        BASE
        | {
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20planted-1,x-b=2",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment.name=prod%2C1",
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_SEMCONV_STABILITY_OPT_IN": "http,gen_ai_latest_experimental",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT",
        }
    )
    traces = loaded.config.traces
    headers = {name: value.get_secret_value() for name, value in traces.headers.items()}
    assert headers == {"Authorization": "Bearer planted-1", "x-b": "2"}
    assert "Bearer planted-1" in loaded.secrets
    assert "planted-1" not in repr(traces)
    assert (traces.timeout_seconds, traces.compression, traces.service_name) == (2.5, "gzip", "shop")
    assert traces.resource == {"deployment.environment.name": "prod,1"}
    assert (traces.sample, traces.follow_parent) == (0.25, False)
    assert (traces.latest_names, traces.content) == (True, "span_and_event")


@pytest.mark.parametrize(
    ("sampler", "sample", "follows"),
    [
        ("always_on", 1.0, False),
        ("always_off", 0.0, False),
        ("parentbased_always_on", 1.0, True),
        ("parentbased_always_off", 0.0, True),
        ("parentbased_traceidratio", 1.0, True),
    ],
)
def test_samplers_are_a_share_and_whether_parents_decide(read: Any, sampler: str, sample: float, follows: bool) -> None:
    traces = read(BASE | {"OTEL_TRACES_SAMPLER": sampler}).config.traces
    assert (traces.sample, traces.follow_parent) == (sample, follows)


def test_where_the_file_speaks_too_it_counts(read: Any) -> None:
    block = "traces: {endpoint: 'http://localhost:1/x', sample: 0.5, headers: {x-a: '1'}}"
    environ = BASE | {
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-b=2",
        "OTEL_SERVICE_NAME": "shop",
    }
    traces = read(environ, block).config.traces
    assert (traces.endpoint, traces.sample, list(traces.headers)) == ("http://localhost:1/x", 0.5, ["x-a"])
    assert traces.service_name == "shop"


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "TRUE"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_it_can_be_switched_off(read: Any, off: dict[str, str]) -> None:
    assert read(BASE | off).config.traces.endpoint is None
    assert read(off, "traces: {endpoint: 'http://localhost:1'}").config.traces.endpoint is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "planted-secret"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zip"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_RESOURCE_ATTRIBUTES", "production"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "yes"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(read: Any, variable: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(BASE | {variable: value})
    assert f"environment variable {variable}" in str(refused.value)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize("share", ["2", "-0.1", "nan", "many"])
def test_a_share_that_is_none_is_refused(read: Any, share: str) -> None:
    with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER_ARG"):
        read(BASE | {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": share})
