"""`deploy/compose/scale.yml`: its parts fit together, and its config is one that Callgate takes."""

import os
import re
from typing import Any

import yaml

from callgate.application import create_app
from callgate.config.schema.whole import Config
from tests.harness.command import run_command
from tests.harness.configs import config_dict
from tests.harness.environment import ROOT
from tests.harness.needs import needs
from tests.harness.postgres import PostgresServer

FOLDER = ROOT / "deploy" / "compose"
WHOLE: dict[str, Any] = yaml.safe_load((FOLDER / "scale.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = WHOLE["services"]


def commands(*first: str) -> list[list[str]]:
    return [each["command"] for each in SERVICES.values() if each.get("command", [])[: len(first)] == list(first)]


def test_it_has_two_proxies_two_workers_and_what_they_share() -> None:
    assert (len(commands("serve")), len(commands("worker")), len(commands("ledger", "migrate"))) == (2, 2, 1)
    assert {"balancer", "redis", "postgres"} <= SERVICES.keys()
    for name, service in SERVICES.items():
        assert service.get("depends_on", {}).keys() <= SERVICES.keys(), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in WHOLE["volumes"] or (FOLDER / source).exists(), volume
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:8000:8000"]


def test_the_balancer_asks_the_proxies_by_routes_they_have() -> None:
    text = (FOLDER / "scale" / "Caddyfile").read_text("utf-8")
    assert set(re.findall(r"(\S+):8000 ", text)) - {""} == {
        name for name, service in SERVICES.items() if service.get("command", [""])[0] == "serve"
    }
    routes = create_app(Config.model_validate(config_dict("http://127.0.0.1:1"))).openapi()["paths"]
    assert re.findall(r"health_uri (\S+)", text) == ["/health/ready"]
    assert "/health/ready" in routes


@needs("postgres", "module:asyncpg")
def test_its_config_passes_check_and_has_every_pool_that_a_worker_serves(postgres: PostgresServer) -> None:
    file = FOLDER / "scale" / "config.yaml"
    given = dict(SERVICES["proxy-1"]["environment"], CALLGATE_CONFIG=str(file), CALLGATE_LEDGER=postgres.url)
    for command in (["ledger", "migrate"], ["keys", "create", f"of_{os.getpid()}"], ["check"]):
        done = run_command(*command, environment=given)
        assert done.returncode == 0, done.stdout + done.stderr
    pools = yaml.safe_load(file.read_text("utf-8"))["pools"].keys()
    assert {command[command.index("--pool") + 1] for command in commands("worker")} == pools
