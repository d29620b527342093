"""What clients choose is not kept: names, filters, fields and headers, all made up and long."""

from pathlib import Path

import pytest

from tests.chaos.scale import scaled
from tests.harness.clients import http_client
from tests.harness.configs import as_yaml
from tests.harness.process import serving_command

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = scaled(150, 400)
LENGTH = 7000
"""Characters, below every limit on a header. All together would be more than twice what memory may grow by."""
MAX_GROWTH = scaled(7, 20) * 1024 * 1024
CONFIG = {
    "model_list": [
        {"model_name": "demo", "litellm_params": {"model": "demo/demo"}, "tools": ["*"]},
        {"model_name": "wild/*", "litellm_params": {"model": "demo/*"}, "tools": ["*"]},
    ],
    "tools": [{"kind": "python", "module": "callgate.tools.builtin"}],
    "logging": {"level": "error"},
}


def resident(process: int) -> int:
    [line] = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


async def test_hostile_names_leave_memory_as_it_was(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(as_yaml(CONFIG))
    message = [{"role": "user", "content": "hi"}]
    async with serving_command(config, fresh=True) as served, http_client(served.url) as client:

        async def hostile(start: int, rounds: int) -> None:
            for number in range(start, start + rounds):
                odd = f"{number:08d}" + "x" * LENGTH
                tool = {"type": "function", "function": {"name": f"t{number}", "description": odd}}
                for body, headers in (
                    ({"model": odd}, {}),
                    ({"model": f"wild/{number}" + "y" * 150}, {}),
                    ({"model": "demo", odd: 1}, {}),
                    ({"model": "demo", "user": odd, "metadata": {odd: odd}}, {}),
                    ({"model": "demo", "tools": [tool]}, {}),
                    ({"model": "demo"}, {"x-callgate-tools": f"{odd}*"}),
                    ({"model": "demo"}, {"content-type": f"application/json; a={odd}"}),
                    ({"model": "demo"}, {"x-request-id": odd, "idempotency-key": odd[:200]}),
                    ({"model": "demo"}, {"origin": odd, "user-agent": odd}),
                ):
                    answer = await client.post(
                        "/v1/chat/completions", json={"messages": message, "max_tokens": 1, **body}, headers=headers
                    )
                    assert answer.status_code < 500, answer.text

        await hostile(0, 40)
        before = resident(served.process.pid)
        await hostile(1000, ROUNDS)
        assert resident(served.process.pid) - before < MAX_GROWTH
