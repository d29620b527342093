"""What operators and their tools read of Callgate: log events, metrics, the OpenAPI document, the help of the commands, the
settings."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main

from callgate.application import create_app
from callgate.commands import app
from callgate.config.schema.editors import json_schema_text
from callgate.telemetry.metrics import Metrics
from tests.harness.configs import make_config
from tests.harness.log_lines import LogLine, logged

FOLDER = Path(__file__).parent / "operating"
WIDTH = 100


def log_events() -> str:
    """One line for each event: its loggers, levels and fields. A logger that was handed over to what logs is `-`."""
    sites = defaultdict[str, list[LogLine]](list)
    for line in logged():
        sites[line.event or "?"].append(line)
    lines = []
    for event in sorted(sites):
        loggers = sorted({line.logger or "-" for line in sites[event]})
        levels = sorted({level for line in sites[event] for level in line.levels})
        fields = sorted({field for line in sites[event] for field in line.fields})
        lines.append("  ".join([event, ", ".join(loggers), ", ".join(levels), *fields]))
    return "\n".join(lines) + "\n"


def metrics() -> str:
    """One line for each metric: its name, type, labels, buckets and help."""
    everything = Metrics()
    labels = {metric.name: getattr(metric, "_labelnames", ()) for metric in everything.registry.collect()}
    for family in vars(everything).values():
        if hasattr(family, "collect") and hasattr(family, "of"):
            family.of(*("x" for _ in labels[family.name]))
    lines = []
    for metric in everything.registry.collect():
        if metric.name.startswith("callgate_"):
            bounds = dict.fromkeys(sample.labels["le"] for sample in metric.samples if "le" in sample.labels)
            shown = [metric.name, metric.type, ",".join(labels[metric.name]), " ".join(bounds), metric.documentation]
            lines.append("  ".join(part for part in shown if part))
    return "\n".join(sorted(lines)) + "\n"


def openapi() -> str:
    """The document that is served, one line for each operation and each schema."""
    document = create_app(make_config("http://127.0.0.1:1")).openapi()
    paths = document.pop("paths")
    schemas = document.get("components", {}).pop("schemas", {})
    lines = [as_json(document)]
    for path in sorted(paths):
        lines += [f"{method.upper()} {path}: {as_json(operation)}" for method, operation in paths[path].items()]
    lines += [f"{name}: {as_json(schemas[name])}" for name in sorted(schemas)]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The help of every command."""
    root: Any = typer.main.get_command(app)
    return "\n".join(f"# {path}\n{text}\n" for path, text in help_of("callgate", root))


def help_of(path: str, command: Any) -> Iterator[tuple[str, str]]:
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=WIDTH, max_content_width=WIDTH)
    yield path, command.get_help(context)
    for name, inner in getattr(command, "commands", {}).items():
        yield from help_of(f"{path} {name}", inner)


def settings() -> str:
    """Every setting with its type and default, and a digest of the schema for editors, which has their descriptions too."""
    text = json_schema_text()
    schema = json.loads(text)
    lines = [f"config.schema.json {hashlib.sha256(text.encode()).hexdigest()}"]
    for name, section in {"Config": schema, **schema["$defs"]}.items():
        lines += ["", f"{name}:"]
        for setting, described in section.get("properties", {}).items():
            kind = {key: value for key, value in described.items() if key not in ("title", "description")}
            lines.append(f"  {setting}: {as_json(kind)}")
    return "\n".join(lines) + "\n"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


SNAPSHOTS: Mapping[str, Callable[[], str]] = {
    "log-events.txt": log_events,
    "metrics.txt": metrics,
    "openapi.txt": openapi,
    "commands.txt": commands,
    "settings.txt": settings,
}
"""How each file is made."""
