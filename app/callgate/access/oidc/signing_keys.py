"""The public keys of an issuer, as a JWK set has them (RFC 7517), and the signatures that they verify (RFC 7518, RFC 8037)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from callgate.access.oidc.base64url import NotBase64Url, from_base64url
from callgate.untrusted.doors import Door, Untrusted
from callgate.untrusted.readers import READ_ERRORS, json_reader

JWKS_BYTES: Final = 64 * 1024
MOST_KEYS: Final = 100
MOST_KID_CHARS: Final = 256
RSA_BITS: Final = range(2048, 8193)
"""Shorter ones can be factored, and longer ones take long to compute with."""
RSA_EXPONENTS: Final = range(3, 2**32)

JWKS_DOCUMENT: Final = Door(name="the keys of an issuer", bytes=JWKS_BYTES)

_PublicKey: TypeAlias = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_Hash: TypeAlias = type[hashes.SHA256] | type[hashes.SHA384] | type[hashes.SHA512]


@dataclass(frozen=True, slots=True)
class Scheme:
    """What an algorithm is made of."""

    kind: Literal["RSA", "EC", "OKP"]
    """The `kty` of its keys."""
    hash: _Hash
    curve: str = ""
    """The `crv` of its keys."""
    is_pss: bool = False


SCHEMES: Final[Mapping[str, Scheme]] = {
    "RS256": Scheme("RSA", hashes.SHA256),
    "RS384": Scheme("RSA", hashes.SHA384),
    "RS512": Scheme("RSA", hashes.SHA512),
    "PS256": Scheme("RSA", hashes.SHA256, is_pss=True),
    "PS384": Scheme("RSA", hashes.SHA384, is_pss=True),
    "PS512": Scheme("RSA", hashes.SHA512, is_pss=True),
    "ES256": Scheme("EC", hashes.SHA256, "P-256"),
    "ES384": Scheme("EC", hashes.SHA384, "P-384"),
    "EdDSA": Scheme("OKP", hashes.SHA512, "Ed25519"),
}
"""By `alg`. There is none with a shared secret: whoever knew that could sign as well."""

_CURVES: Final[Mapping[str, tuple[ec.EllipticCurve, int]]] = {
    "P-256": (ec.SECP256R1(), 32),
    "P-384": (ec.SECP384R1(), 48),
}
"""Each curve with the bytes of its numbers."""


class NoSigningKeys(Exception):
    """Raised for a document that is no set of keys, with the reason."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One public key that signs tokens."""

    kid: str | None
    kind: str
    curve: str
    algorithm: str | None
    """The only one that it is for, where it says so."""
    public: _PublicKey

    def is_for(self, algorithm: str) -> bool:
        scheme = SCHEMES[algorithm]
        return (self.kind, self.curve) == (scheme.kind, scheme.curve) and self.algorithm in (None, algorithm)

    def has_signed(self, algorithm: str, text: bytes, signature: bytes) -> bool:
        """Return whether a text was signed with this key, by an algorithm that it is for."""
        scheme = SCHEMES[algorithm]
        try:
            match self.public:
                case rsa.RSAPublicKey():
                    hash = scheme.hash()
                    pad: padding.AsymmetricPadding = padding.PKCS1v15()
                    if scheme.is_pss:
                        pad = padding.PSS(padding.MGF1(hash), salt_length=hash.digest_size)
                    self.public.verify(signature, text, pad, hash)
                case ec.EllipticCurvePublicKey():
                    size = _CURVES[scheme.curve][1]
                    if len(signature) != 2 * size:  # two numbers, and not DER
                        return False
                    halves = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
                    self.public.verify(encode_dss_signature(*halves), text, ec.ECDSA(scheme.hash()))
                case ed25519.Ed25519PublicKey():
                    self.public.verify(signature, text)
        except InvalidSignature:
            return False
        return True


class SigningKeys:
    """The keys of an issuer that sign tokens."""

    def __init__(self, keys: tuple[SigningKey, ...], unused: int) -> None:
        self.keys = keys
        self.unused = unused
        """How many others stand in the document: for encryption, of kinds that are not known, too short."""

    @classmethod
    def of_document(cls, document: bytes) -> "SigningKeys":
        """Read a JWK set. Raises `NoSigningKeys` where not one key of it can be used."""
        try:
            entries = _read_set(Untrusted(document, JWKS_DOCUMENT).open()).get("keys")
        except READ_ERRORS as error:
            raise NoSigningKeys(f"its keys cannot be read: {type(error).__name__}") from None
        if not isinstance(entries, list) or len(entries) > MOST_KEYS:
            raise NoSigningKeys(f"its keys are no list of at most {MOST_KEYS}")
        usable = tuple(key for entry in entries if (key := _signing_key(entry)) is not None)
        if not usable:
            raise NoSigningKeys("none of its keys can verify a token")
        return cls(usable, len(entries) - len(usable))

    def find(self, kid: str | None, algorithm: str) -> SigningKey | None:
        """Return the one key that a token may be signed with; None where there is none, or several."""
        fitting = [key for key in self.keys if kid in (None, key.kid) and key.is_for(algorithm)]
        if len(fitting) == 1:
            return fitting[0]
        return None

    def knows(self, kid: str | None) -> bool:
        """Return whether a key is called that."""
        return kid is None or any(key.kid == kid for key in self.keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SigningKeys) and self.keys == other.keys

    __hash__ = None  # type: ignore[assignment]


_read_set = json_reader(dict[str, Any])


def _signing_key(entry: Any) -> SigningKey | None:
    """Return the key of a JWK; None where it is not for signatures, or not known to be safe."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops", ["verify"])
    algorithm = entry.get("alg")
    kid = entry.get("kid")
    if not isinstance(operations, list) or "verify" not in operations or "d" in entry:
        return None  # with `d` it is the private key, which somebody has published
    if not (kid is None or (isinstance(kid, str) and 0 < len(kid) <= MOST_KID_CHARS)):
        return None
    if algorithm is not None and (not isinstance(algorithm, str) or algorithm not in SCHEMES):
        return None
    kind = str(entry.get("kty"))
    curve = entry.get("crv", "") if kind in ("EC", "OKP") else ""
    if not isinstance(curve, str):
        return None
    try:
        public = _public_key(kind, curve, entry)
    except (NotBase64Url, ValueError, UnsupportedAlgorithm):
        return None
    if public is None:
        return None
    return SigningKey(kid, kind, curve, algorithm, public)


def _public_key(kind: str, curve: str, entry: dict[str, Any]) -> _PublicKey | None:
    """Return the key that the numbers of a JWK make. Raises `ValueError` where they make none."""
    if kind == "RSA":
        modulus = int.from_bytes(from_base64url(entry.get("n")), "big")
        exponent = int.from_bytes(from_base64url(entry.get("e")), "big")
        if modulus.bit_length() not in RSA_BITS or exponent not in RSA_EXPONENTS:
            return None
        return rsa.RSAPublicNumbers(exponent, modulus).public_key()
    if kind == "EC" and curve in _CURVES:
        group, size = _CURVES[curve]
        x = from_base64url(entry.get("x"))
        y = from_base64url(entry.get("y"))
        if (len(x), len(y)) != (size, size):
            return None
        numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), group)
        return numbers.public_key()
    if kind == "OKP" and curve == "Ed25519":
        return ed25519.Ed25519PublicKey.from_public_bytes(from_base64url(entry.get("x")))
    return None
