"""The Helm chart: what it renders to is what is written down, valid for every Kubernetes we name, and fits together."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.command import run_command
from tests.harness.configs import config_dict
from tests.harness.environment import ROOT, Environment
from tests.harness.needs import needs

pytestmark = needs("environment:kubernetes")

CHART = ROOT / "deploy" / "helm" / "callgate"
RENDERED = Path(__file__).parent / "rendered"
VERSIONS = ["1.29", "1.33", "1.37"]
WRITE = "CALLGATE_RENDERED"
"""`write` renders the files anew, to be read in the diff."""

SHARED: dict[str, Any] = {
    "createKey": False,
    "proxySecrets": ["callgate"],
    "config": {
        "store": {"redis_url": "os.environ/CALLGATE_REDIS"},
        "keys": [{"name": "chat", "hash": "os.environ/CALLGATE_KEY_HASH"}],
    },
}
VALUES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "one-with-a-volume": {"persistence": {"enabled": True, "size": "5Gi", "storageClassName": "fast"}},
    "own-tools": {
        "toolsConfigMap": "my-tools",
        "environment": {"LOG": "1"},
        "image": {"repository": "team/callgate", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
    },
    "three": {**SHARED, "replicaCount": 3, "podDisruptionBudget": {"enabled": True, "minAvailable": 2}},
    "reachable": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["llm.example.com"],
            "tls": [{"secretName": "llm", "hosts": ["llm.example.com"]}],
        },
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a/b": "c"}},
    },
    "growing": {
        **SHARED,
        "autoscaling": {"enabled": True, "targetInFlight": 50},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "priorityClassName": "high",
    },
    "watched": {
        "serviceMonitor": {"enabled": True, "bearerTokenSecret": {"name": "metrics", "key": "key"}},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "chat"}}}]},
        "serviceAccount": {"name": "callgate-reader", "annotations": {"a/b": "c"}},
    },
    "fleet": {
        **SHARED,
        "workerSecrets": ["callgate-worker"],
        "config": {
            **SHARED["config"],
            "ledger": {"url": "os.environ/CALLGATE_LEDGER"},
            "pools": {"gpu": {}, "default": {}, "1": {}},
        },
        "migrate": {"enabled": True},
        "networkPolicy": {"enabled": True},
        "pools": {
            "1": {},
            "default": {"replicas": 2, "concurrency": 4},
            "gpu": {
                "image": {"repository": "team/callgate-gpu", "tag": "1"},
                "timeoutSeconds": 1800,
                "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi"}},
                "nodeSelector": {"accelerator": "a100"},
                "runtimeClassName": "gvisor",
                "keda": {"enabled": True, "address": "redis.default:6379", "authentication": "redis"},
            },
        },
    },
}

DEPLOYMENT = "templates/deployment.yaml"
FAULTS: Mapping[str, tuple[str, str, str]] = {
    "a misspelt field": (DEPLOYMENT, "readinessProbe:", "readynessProbe:"),
    "a wrong type": (DEPLOYMENT, "periodSeconds: 5", "periodSeconds: often"),
    "an API that is gone": ("templates/scaling.yaml", "policy/v1", "policy/v1beta1"),
    "a selector that selects nothing": ("templates/service.yaml", "component: proxy", "component: proxies"),
    "a probe of a route that is not there": (DEPLOYMENT, "/health/ready", "/health/readiness"),
    "a wrong indent": (
        DEPLOYMENT,
        "            httpGet: {path: /health/live",
        "          httpGet: {path: /health/live",
    ),
    "a helper that is missing": ("templates/service.yaml", 'include "callgate.labels"', 'include "callgate.label"'),
    "a ConfigMap that is not there": ("templates/configmap.yaml", "kind: ConfigMap", "kind: Secret"),
    "a port of another name": ("templates/service.yaml", "targetPort: http", "targetPort: web"),
    "a volume that is not mounted from anywhere": (DEPLOYMENT, "{name: tmp, mountPath", "{name: temp, mountPath"),
    "a disruption budget for nobody": ("templates/scaling.yaml", "component: proxy", "component: web"),
    "a service account that is not made": (
        "templates/serviceaccount.yaml",
        '{{ include "callgate.serviceAccount" . }}',
        "somebody",
    ),
}

CONTRADICTIONS: Mapping[str, tuple[dict[str, Any], str]] = {
    "several without Redis": ({"replicaCount": 2, "createKey": False}, "config.store.redis_url"),
    "growing without Redis": ({"autoscaling": {"enabled": True}, "createKey": False}, "config.store.redis_url"),
    "several on one volume": ({**SHARED, "replicaCount": 2, "persistence": {"enabled": True}}, "config.ledger.url"),
    "several that make the first key": ({**SHARED, "replicaCount": 2, "createKey": True}, "createKey"),
    "a migration of nothing": ({"migrate": {"enabled": True}}, "config.ledger.url"),
    "workers without a queue": ({"pools": {"gpu": {}}}, "config.store.redis_url"),
    "an unknown value": ({"replicas": 3}, "replicas"),
    "an unknown value of a pool": ({"pools": {"gpu": {"cpu": 3}}}, "cpu"),
    "an ingress for no name": ({"ingress": {"enabled": True}}, "ingress.hosts"),
}


def rendered(*requests: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the chart answers to each."""
    python = Environment("kubernetes").interpreter
    script = Path(__file__).parent / "drivers" / "chart.py"
    asked = json.dumps([{"versions": VERSIONS, "values": {}, **request} for request in requests])
    done = subprocess.run(
        [python, script, CHART], input=asked, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def charts() -> dict[str, dict[str, Any]]:
    """Every set of values, rendered."""
    return dict(zip(VALUES, rendered(*({"values": values} for values in VALUES.values())), strict=True))


@pytest.mark.parametrize("name", VALUES)
def test_what_the_chart_renders_to_is_valid_and_is_what_is_written_down(name: str, charts: dict[str, dict[str, Any]]):
    chart = charts[name]
    assert "error" not in chart, chart["error"]
    file = RENDERED / f"{name}.yaml"
    if os.environ.get(WRITE) == "write":
        file.write_text(chart["text"] + "\n", encoding="utf-8")
    assert chart["text"] + "\n" == file.read_text(encoding="utf-8"), f"{WRITE}=write renders it anew"


@pytest.mark.parametrize("name", VALUES)
def test_the_parts_of_the_chart_fit_together(name: str, charts: dict[str, dict[str, Any]]):
    assert list(misfits(charts[name]["objects"])) == []


def test_every_fault_that_is_planted_in_the_chart_is_found():
    # The values that render everything there is, for proxies and for workers.
    everything = {**VALUES["fleet"], "podDisruptionBudget": {"enabled": True}}
    sound, *faulty = rendered(
        *(
            {"values": everything, "changes": change, "versions": ["1.33"]}
            for change in ([], *([it] for it in FAULTS.values()))
        )
    )
    assert list(misfits(sound["objects"])) == []
    found = [
        name for name, chart in zip(FAULTS, faulty, strict=True) if "error" in chart or any(misfits(chart["objects"]))
    ]
    assert found == list(FAULTS)


def test_values_that_contradict_one_another_are_refused_with_what_to_do():
    charts = rendered(*({"values": values, "versions": []} for values, _ in CONTRADICTIONS.values()))
    for (name, (_, said)), chart in zip(CONTRADICTIONS.items(), charts, strict=True):
        assert said in chart.get("error", ""), name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs("postgres") if name == "fleet" else ()) for name in VALUES]
)
def test_the_rendered_config_is_one_that_callgate_takes(
    name: str, charts: dict[str, dict[str, Any]], tmp_path: Path, request: pytest.FixtureRequest
):
    config = next(each for each in charts[name]["objects"] if each["kind"] == "ConfigMap")["data"]["config.yaml"]
    (tmp_path / "config.yaml").write_text(config.replace("/data", str(tmp_path)), encoding="utf-8")
    given = {
        "CALLGATE_REDIS": "redis://127.0.0.1:6379/0",
        "CALLGATE_KEY_HASH": "sha256:" + "0" * 64,
    }

    if name == "fleet":
        given["CALLGATE_LEDGER"] = request.getfixturevalue("postgres").url

    def run(*command: str) -> None:
        done = run_command(*command, "--config", "config.yaml", folder=tmp_path, environment=given)
        assert done.returncode == 0, done.stdout + done.stderr

    if name == "fleet":
        run("ledger", "migrate")
    if VALUES[name].get("createKey", True):
        run("keys", "create", "first")  # as `serve --create-key` will
    run("check")


def test_the_charts_version_of_callgate_is_the_projects():
    from callgate import __version__

    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


def misfits(objects: list[dict[str, Any]]) -> Iterator[str]:
    """What no schema says: that names by which parts of the chart know each other are the same on both sides."""
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    pods = {name: each["spec"]["template"] for (kind, name), each in by_name.items() if kind in {"Deployment", "Job"}}
    pod_labels = [pod["metadata"]["labels"] for pod in pods.values()]
    services = [each["metadata"]["labels"] for each in objects if each["kind"] == "Service"]
    ports = {
        port["name"] for pod in pods.values() for its in pod["spec"]["containers"] for port in its.get("ports", ())
    }
    for (kind, name), each in by_name.items():
        spec = each.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector") or {}
        wanted: Mapping[str, str] = selector.get("matchLabels", {}) if kind != "Service" else selector
        candidates = services if kind == "ServiceMonitor" else pod_labels
        if wanted and not any(wanted.items() <= labels.items() for labels in candidates):
            yield f"{kind} {name} selects nothing"
        if kind == "Service" and not {port["targetPort"] for port in spec["ports"]} <= ports:
            yield f"{kind} {name} leads to a port that no container has"
        if "scaleTargetRef" in spec and ("Deployment", spec["scaleTargetRef"]["name"]) not in by_name:
            yield f"{kind} {name} scales nothing"
        for rule in spec["rules"] if kind == "Ingress" else ():
            for path in rule["http"]["paths"]:
                if ("Service", path["backend"]["service"]["name"]) not in by_name:
                    yield f"{kind} {name} leads nowhere"
    for name, pod in pods.items():
        yield from _misfits_of_pod(name, pod["spec"], by_name)


def _misfits_of_pod(name: str, pod: dict[str, Any], by_name: Mapping[tuple[str, str], Any]) -> Iterator[str]:
    account = pod.get("serviceAccountName")
    if account is not None and ("ServiceAccount", account) not in by_name:
        yield f"{name} runs as {account}, which is not made"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for volume in volumes.values():
        sources = [volume, *volume.get("projected", {}).get("sources", ())]
        wanted = [source["configMap"]["name"] for source in sources if "configMap" in source]
        for config in wanted:
            if config != "my-tools" and ("ConfigMap", config) not in by_name:
                yield f"{name} mounts the ConfigMap {config}, which is not there"
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim is not None and ("PersistentVolumeClaim", claim) not in by_name:
            yield f"{name} mounts the claim {claim}, which is not there"
    routes = create_app(Config.model_validate(config_dict("http://127.0.0.1:1"))).openapi()["paths"]
    for container in pod["containers"]:
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                yield f"{name} mounts {mount['name']}, which is no volume"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container.get(probe, {}).get("httpGet", {}).get("path")
            if path is not None and path not in routes:
                yield f"{name} is probed at {path}, which is no route"


def test_the_kustomize_base_is_what_the_chart_renders_to_with_its_defaults():
    (chart,) = rendered({"values": {"fullnameOverride": "callgate"}})
    base = ROOT / "deploy" / "kustomize" / "base"
    objects = list(yaml.safe_load_all((base / "callgate.yaml").read_text(encoding="utf-8")))
    config = {"config.yaml": (base / "config.yaml").read_text(encoding="utf-8")}
    objects.append(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "callgate", "labels": NAME}, "data": config}
    )
    assert {each["kind"]: each for each in objects} == {each["kind"]: _plain(each) for each in chart["objects"]}
    assert list(misfits(objects)) == []
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text(encoding="utf-8"))
    assert all((base / file).is_file() for file in kustomization["resources"])
    assert kustomization["configMapGenerator"] == [{"name": "callgate", "files": ["config.yaml"]}]


NAME = {"app.kubernetes.io/name": "callgate"}
OF_HELM = {
    "helm.sh/chart",
    "checksum/config",
    *(f"app.kubernetes.io/{it}" for it in ("managed-by", "version", "instance")),
}


def _plain(value: Any) -> Any:
    """Without what only Helm writes."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _plain(each)
        for name, each in value.items()
        if name not in OF_HELM and (name, _plain(each)) != ("annotations", {})
    }
