"""Every metric is explained on one page and shown on the dashboard, with the labels that it has."""

import json
import re
from pathlib import Path

from prometheus_client import Gauge

from callgate.telemetry.metrics import Family, Metrics

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "observability" / "grafana.json").read_text(encoding="utf-8"))
ROW = re.compile(r"^\| `(callgate_[a-z_]+)` \|([^|]*)\|", re.MULTILINE)
NAME = re.compile(r"callgate_[a-z_]+")


def shown() -> dict[str, str]:
    """Each metric's name as Prometheus has it, and its type."""
    return {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.type
        for metric in Metrics().registry.collect()
        if metric.name.startswith("callgate_")
    }


def test_the_page_explains_every_metric_with_its_labels():
    labels = {family.name: family._labels for family in vars(Metrics()).values() if isinstance(family, Family)}
    explained = {name: set(re.findall(r"`([a-z_]+)`", said)) for name, said in ROW.findall(PAGE)}
    assert explained.keys() == shown().keys()
    for name, of in labels.items():
        assert set(of) in (explained.get(name), explained.get(f"{name}_total")), name


def test_the_dashboard_shows_every_metric_and_none_that_is_not_there():
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    queries = [
        variable["query"]["query"]
        for variable in DASHBOARD["templating"]["list"]
        if isinstance(variable["query"], dict)
    ]
    used = {
        re.sub(r"_(bucket|count|sum)$", "", name) for text in (*expressions, *queries) for name in NAME.findall(text)
    }
    assert used == shown().keys()


def test_the_dashboard_asks_for_labels_that_there_are_and_shows_those_that_it_keeps():
    metrics = vars(Metrics()).values()
    labels = {family.name: set(family._labels) for family in metrics if isinstance(family, Family)}
    labels |= {gauge._name: set(gauge._labelnames) for gauge in metrics if isinstance(gauge, Gauge)}
    labels |= {
        "callgate_upstream_cooldown_seconds": {"model", "deployment", "host"},
        "callgate_key_used": {"key", "what"},
        "callgate_store_away": {"store"},
        "callgate_log_events": {"level", "event"},
    }
    asked = 0
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            [name] = {re.sub(r"_(bucket|count|sum|total)$", "", each) for each in NAME.findall(expression)}
            known = labels.get(name, set())
            kept = {word for found in re.findall(r"by \(([^)]*)\)", expression) for word in found.split(", ")}
            chosen = set(re.findall(r"[{,]([a-z_]+)[=!]", expression))
            shown = set(re.findall(r"{{([a-z_]+)}}", target["legendFormat"]))
            assert (kept | chosen) - {"le"} <= known, panel["title"]
            assert shown == kept - {"le"}, panel["title"]
            asked += len(kept)
    assert asked > 20


def test_the_dashboard_takes_the_processes_own_metrics_whatever_the_job_is_called():
    names = set(re.findall(r"process_[a-z_]+", json.dumps(DASHBOARD)))
    assert names == {"process_resident_memory_bytes", "process_cpu_seconds_total"}
    exposed = Metrics().exposition()[0].decode()
    assert all(f"\n{name} " in exposed for name in names)
    assert 'job=\\"' not in json.dumps(DASHBOARD)


def test_every_alert_is_about_a_metric_that_there_is():
    for row in re.findall(r"^\| `(.*callgate_.*)` \| [a-z]", PAGE.partition("## Worth an alert")[2], re.MULTILINE):
        assert set(NAME.findall(row)) <= shown().keys()


def test_panels_do_not_lie_on_each_other():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
