"""Reads OpenTelemetry's standard variables into the config where the file does not set them."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from callgate.config.document import Document
from callgate.config.problems import Problem, Spot

BLOCK: Final = "traces"
OTLP: Final = "OTEL_EXPORTER_OTLP_"
SAMPLERS: Final = ("always_on", "always_off", "traceidratio")
PARENT_BASED: Final = "parentbased_"
CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
LATEST: Final = "gen_ai_latest_experimental"


class _Bad(ValueError):
    """Raised for an invalid value of a variable."""


def take_in_variables(document: Document, environ: Mapping[str, str]) -> None:
    """Read the variables, if spans are sent; without an endpoint they are for other programs."""
    value = document.value if isinstance(document.value, dict) else {}
    block = value.get(BLOCK) or {}
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        if isinstance(block, dict) and block.get("endpoint") is not None:
            document.put((BLOCK, "endpoint"), None, Spot("environment variable OTEL_SDK_DISABLED"))
        return
    if not isinstance(block, dict):
        return
    if block.get("endpoint") is None and not _of_signal(environ, "ENDPOINT")[1]:
        return
    for name, reader in _READERS:
        _take(document, block, environ, name, reader)


def _take(
    document: Document,
    block: Mapping[str, Any],
    environ: Mapping[str, str],
    name: str,
    reader: Callable[[str, Mapping[str, str]], Mapping[str, Any]],
) -> None:
    variable, value = _of_signal(environ, name) if not name.startswith("OTEL_") else (name, environ.get(name, ""))
    if not value.strip():
        return
    spot = Spot(f"environment variable {variable}")
    try:
        settings = reader(value.strip(), environ if name != "ENDPOINT" else {variable: value})
    except _Bad as error:
        document.problems.append(Problem(spot, "", str(error)))
        return
    for setting, meant in settings.items():
        if setting == "headers":
            document.secrets.update(secret for secret in meant.values() if secret)
        if setting not in block:
            document.put((BLOCK, setting), meant, spot)


def _of_signal(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """Return a variable's value for traces, else its value for all signals."""
    for variable in (f"{OTLP}TRACES_{name}", f"{OTLP}{name}"):
        if environ.get(variable, "").strip():
            return variable, environ[variable]
    return name, ""


def _pairs(value: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in filter(str.strip, value.split(",")):
        name, separator, text = pair.partition("=")
        if not separator or not name.strip():
            raise _Bad("should be pairs, such as `name=value,other=value`")
        pairs[unquote(name.strip())] = unquote(text.strip())
    return pairs


def _seconds(value: str, _: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        milliseconds = float(value)
    except ValueError:
        raise _Bad("should be a number of milliseconds") from None
    return {"timeout_seconds": milliseconds / 1000}


def _protocol(value: str, _: Mapping[str, str]) -> Mapping[str, Any]:
    if value != "http/protobuf":
        raise _Bad("should be `http/protobuf`: spans are sent in no other way (port 4318 of most collectors)")
    return {}


def _resource(value: str, environ: Mapping[str, str]) -> Mapping[str, Any]:
    pairs = _pairs(value)
    name = pairs.pop("service.name", "")
    return {"resource": pairs, **({"service_name": name} if name and not environ.get("OTEL_SERVICE_NAME") else {})}


def _sampler(value: str, environ: Mapping[str, str]) -> Mapping[str, Any]:
    kind = value.lower().removeprefix(PARENT_BASED)
    if kind not in SAMPLERS:
        choices = ", ".join(f"`{prefix}{sampler}`" for prefix in ("", PARENT_BASED) for sampler in SAMPLERS)
        raise _Bad(f"should be one of {choices}")
    share = {"always_on": 1.0, "always_off": 0.0}.get(kind)
    if share is None:
        argument = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
        try:
            share = float(argument)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise _Bad("with it, OTEL_TRACES_SAMPLER_ARG should be a number from 0 to 1")
    return {"sample": share, "follow_parent": value.lower().startswith(PARENT_BASED)}


def _exporter(value: str, _: Mapping[str, str]) -> Mapping[str, Any]:
    if value.lower() != "otlp":
        raise _Bad("should be `otlp` or `none`")
    return {}


_READERS: Final[tuple[tuple[str, Callable[[str, Mapping[str, str]], Mapping[str, Any]]], ...]] = (
    (
        "ENDPOINT",  # the one for all signals is a base URL; the one for traces is complete
        lambda value, variables: {
            "endpoint": f"{value.rstrip('/')}/v1/traces" if f"{OTLP}ENDPOINT" in variables else value
        },
    ),
    ("HEADERS", lambda value, _: {"headers": _pairs(value)}),
    ("TIMEOUT", _seconds),
    ("COMPRESSION", lambda value, _: {"compression": value.lower()}),
    ("PROTOCOL", _protocol),
    ("OTEL_TRACES_EXPORTER", _exporter),
    ("OTEL_RESOURCE_ATTRIBUTES", _resource),
    ("OTEL_SERVICE_NAME", lambda value, _: {"service_name": value}),
    ("OTEL_TRACES_SAMPLER", _sampler),
    (CAPTURE, lambda value, _: {"content": value.lower()}),
    (
        "OTEL_SEMCONV_STABILITY_OPT_IN",
        lambda value, _: {"latest_names": True} if LATEST in map(str.strip, value.split(",")) else {},
    ),
)
