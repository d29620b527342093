"""What serving without pools does not load."""

import subprocess
import sys
from pathlib import Path

from tests.harness.configs import as_yaml, config_dict
from tests.harness.process import child_environment

PROBE = """
import asyncio, sys
from pathlib import Path
from callgate.config.load import load
from callgate.application import create_app
import callgate.commands
from callgate.runtime.manager import RuntimeManager

async def main():
    async with RuntimeManager(load(Path(sys.argv[1])).config):
        pass

asyncio.run(main())
print(*sorted({"celery", "kombu", "asyncpg", "psycopg", "redis", "callgate.fleet.fleet", "callgate.fleet.worker"} & sys.modules.keys()))
"""


def test_serving_without_pools_loads_neither_celery_nor_a_driver_of_postgres(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(config_dict("http://127.0.0.1:9", tools=["add"], data_dir=str(tmp_path / "data"))))
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(config)], capture_output=True, text=True, env=child_environment(), check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
