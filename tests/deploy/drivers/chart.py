"""Renders a Helm chart and checks each object against Kubernetes' schemas, without Helm and without a cluster.

Runs in the environment `kubernetes`: `python chart.py CHART < requests.json`. A request is an object with `values` and
`versions` of Kubernetes, and perhaps `changes` (`[file, old, new]`) to be planted in the chart's files first. The answer
is a list of `{"text", "objects"}`, or `{"error"}` where the chart does not render or an object is not valid.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from gotpl.exts.helm import HelmTemplateEngine

CUSTOM = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
"""Of operators: Kubernetes itself has no schema for them."""


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Values over the chart's own, as Helm does: maps are merged, all else is replaced."""
    both = dict(low)
    for name, value in high.items():
        old = both.get(name)
        both[name] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def render(chart: Path, request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The text of each template, in order."""
    files = {path.relative_to(chart).as_posix(): path.read_text("utf-8") for path in chart.rglob("*") if path.is_file()}
    for name, old, new in request.get("changes", ()):
        if old not in files[name]:
            raise ValueError(f"{old!r} is not in {name}")
        files[name] = files[name].replace(old, new, 1)
    about = yaml.safe_load(files["Chart.yaml"])
    values = merged(yaml.safe_load(files["values.yaml"]), request["values"])
    jsonschema.validate(values, json.loads(files["values.schema.json"]))
    # In Helm these are Go structs: a template names their fields with a capital letter.
    chart_fields = {name[0].upper() + name[1:]: value for name, value in about.items()}
    top = {
        "Values": values,
        "Chart": chart_fields,
        "Release": {"Name": "test", "Namespace": "default", "Service": "Helm", "IsInstall": True, "IsUpgrade": False},
        "Capabilities": {"KubeVersion": {"Version": "v1.33.0", "Major": "1", "Minor": "33"}},
        "Template": {"BasePath": f"{about['name']}/templates"},
    }
    sources = {name: text for name, text in files.items() if name.startswith("templates/")}
    shown = [name for name in sorted(sources) if not name.rsplit("/", 1)[1].startswith("_")]
    rendered = HelmTemplateEngine(sources).render(dict.fromkeys(shown, top))
    return [(name, rendered[name]) for name in shown]


def checked(text: str, versions: list[str]) -> list[dict[str, Any]]:
    """The objects in a rendered template."""
    objects = [each for each in yaml.safe_load_all(text) if each is not None]
    for each in objects:
        if each["apiVersion"] in CUSTOM:
            continue
        for version in versions:
            kubernetes_validate.validate(each, version, strict=True)
    return objects


def answer(chart: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        rendered = render(chart, request)
        objects = [
            each for name, text in rendered if name.endswith(".yaml") for each in checked(text, request["versions"])
        ]
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the chart is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "text": "\n".join(f"# {name}\n{text.strip()}" for name, text in rendered if text.strip()),
        "objects": objects,
    }


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump([answer(Path(sys.argv[1]), each) for each in asked], sys.stdout)
