"""What a token of the issuer costs a request: `python bench/tokens.py [times]`.

One that was verified before may take 30 µs of the processor at most, and a key beside an issuer no more than without one, or the exit
code says so. The first time is printed for each algorithm, and refused ones too, which anybody may send.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "app"), str(Path(__file__).parents[1])]

import structlog
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from callgate.access.keys import KeyEntry, Keyring, mint_key
from callgate.access.oidc.issuer import Issuer
from callgate.access.oidc.people import GroupRights, People
from callgate.access.oidc.tokens import TokenRules
from callgate.callers.caller import Caller
from callgate.conversation.errors import ChatError
from tests.harness.issuer import AUDIENCE, RSA_KEY, PrivateKey, TestIssuer, jwk_of

TIMES = 20_000
MOST_MICROSECONDS = 30.0
SIGNERS: dict[str, PrivateKey] = {
    "RS256": RSA_KEY,
    "PS256": RSA_KEY,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


async def main(times: int) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    key, digest = mint_key()
    alone = Keyring([KeyEntry("script", digest)])
    by_key = {"authorization": f"Bearer {key}"}
    print_line("a key, without an issuer", spent(lambda: alone.identify(by_key), times))
    is_slow = False
    for algorithm, private in SIGNERS.items():
        signer = TestIssuer()
        signer.rotate(private, algorithm, algorithm, keep=False)
        people = await people_of(signer)
        keyring = Keyring([KeyEntry("script", digest)], people=people)
        if algorithm == "RS256":
            print_line("a key, beside one", spent(lambda ring=keyring: ring.identify(by_key), times))
        groups = [f"/teams/{number}" for number in range(20)]
        tokens = [signer.token(f"p{number}", "dev", *groups, name="Ada Lovelace") for number in range(200)]
        headers = [{"authorization": f"Bearer {token}"} for token in tokens]
        places = iter(headers)
        first = spent(lambda ring=keyring, places=places: ring.identify(next(places)), len(headers))
        print_line(f"{algorithm}, {len(tokens[0])} characters, the first time", first)
        again = spent(lambda ring=keyring, fields=headers[7]: ring.identify(fields), times)
        print_line(f"{algorithm}, seen before", again)
        is_slow = is_slow or again > MOST_MICROSECONDS
        forged = {"authorization": f"Bearer {tokens[0][:-8]}AAAAAAAA"}
        print_line(f"{algorithm}, forged", spent(lambda ring=keyring, fields=forged: refused(ring, fields), 500))
    return int(is_slow)


async def people_of(signer: TestIssuer) -> People:
    documents = {"issuer": signer.url, "jwks_uri": f"{signer.url}/keys", "keys": [jwk_of(signer.private, signer.kid)]}

    async def fetch(_: str) -> bytes:
        return json.dumps(documents).encode()

    issuer = Issuer(signer.url, None, fetch, lambda _: None)
    await issuer.look()
    rules = TokenRules(signer.url, frozenset({AUDIENCE}), frozenset(SIGNERS), 60.0)
    return People(rules, [GroupRights("dev", Caller("dev"))], issuer, lambda _: None)


def refused(keyring: Keyring, headers: dict[str, str]) -> None:
    try:
        keyring.identify(headers)
    except ChatError:
        return
    raise AssertionError("it was taken")


def spent(work: Callable[[], Any], times: int) -> float:
    """The microseconds of CPU of one, the least of five rounds."""
    rounds = max(times // 5, 1)
    least = float("inf")
    for _ in range(times // rounds):
        began = time.process_time()
        for _ in range(rounds):
            work()
        least = min(least, (time.process_time() - began) / rounds)
    return least * 1e6


def print_line(what: str, microseconds: float) -> None:
    sys.stdout.write(f"{what:46} {microseconds:8.1f} µs\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else TIMES)))
