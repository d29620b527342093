"""A real issuer for the tests: oidc-provider, in a process of its own."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.harness.environment import OIDC_PROVIDER, Environment
from tests.harness.issuer import AUDIENCE
from tests.harness.ports import free_port
from tests.harness.process import child

DRIVER = Path(__file__).with_name("oidc_provider.mjs")
PROGRAM = ("program", "a-secret-of-the-tests")
"""Its client that is no person, and the secret of that."""


@contextlib.asynccontextmanager
async def oidc_provider(seconds: int = 300) -> AsyncIterator[str]:
    """The address of one whose tokens count for so long."""
    environment = Environment(OIDC_PROVIDER)
    command = [
        str(environment.interpreter),
        str(DRIVER),
        str(environment.folder),
        str(free_port()),
        AUDIENCE,
        str(seconds),
    ]
    async with child(command[1:], command=command[:1]) as started:
        yield (await started.line(r"ready (http://127\.0\.0\.1:\d+)")).group(1)


async def token_of_program(issuer: str) -> str:
    """A token of the client that is no person."""
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"{issuer}/token", data={"grant_type": "client_credentials", "scope": "use"}, auth=PROGRAM
        )
    return str(answer.json()["access_token"])
