"""Certificate authorities and client certificates of the operator's own, towards models."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from callgate.config.entry_errors import BadEntry
from callgate.config.schema.whole import Config
from callgate.http.interface import Deadlines, TransportError
from callgate.models.building import model_client, tls_of
from tests.harness.tls import self_signed
from tests.models.wire import raw_provider

pytestmark = [pytest.mark.anyio, pytest.mark.needs("module:cryptography")]

DEMO = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
PATIENCE = Deadlines(connect=5, first_byte=5, idle=5, total=5)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


def config(**upstream: Any) -> Config:
    return Config.model_validate({"model_list": [DEMO], "upstream": {k: str(v) for k, v in upstream.items()}})


async def fetch_start(url: str, settings: Mapping[str, Any]) -> bytes:
    client = model_client(config(**settings))
    try:
        async with client.get(url, {}, PATIENCE) as answer:
            return await answer.read(100)
    finally:
        await client.close()


async def test_a_model_s_server_that_asks_for_a_certificate_is_shown_ours(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED

    async def answer(request: Any, wire: Any) -> None:
        await wire.whole("models")

    async with raw_provider(answer, tls=context) as server:
        assert await fetch_start(server.url, {"ca_file": certificate, "client_certificate": certificate}) == b"models"
        for settings in ({"ca_file": certificate}, {"client_certificate": certificate}, {}):
            with pytest.raises(TransportError):
                await fetch_start(server.url, settings)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ca_file": "/no/such.pem"}, "upstream.ca_file: /no/such.pem cannot be used, PEM is needed: No such file"),
        ({"client_certificate": __file__}, "upstream.client_certificate: "),
        ({"client_key": "/k.pem"}, "upstream.client_key: it goes with `client_certificate`"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_at_the_start(settings: dict[str, str], said: str) -> None:
    with pytest.raises(BadEntry) as error:
        tls_of(config(**settings))
    assert str(error.value).startswith(said)


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "key.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    whole = self_signed(tmp_path)
    with pytest.raises(BadEntry, match=r"encrypted|PEM is needed"):
        tls_of(config(client_certificate=whole, client_key=file))
