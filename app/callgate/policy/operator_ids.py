"""Finds ids of objects (files, responses, …) in the operator's account at a provider. Requests are sent with the operator's
key, so that a client could read with them what another client stored there."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from callgate.conversation import raw_json

KEPT_BY_PROVIDERS: Final = frozenset(
    """
    previous_response_id conversation item_reference file_id file_ids file_uri fileUri vector_store_id vector_store_ids
    file_search_store_names fileSearchStoreNames container container_id cached_content cachedContent connector_id
    """.split()
)
"""Fields that name stored objects."""
WITH_ID: Final = frozenset({"prompt", "audio", "input_audio", "voice"})
"""Fields whose objects name a stored object with their `id`."""

_FREE: Final = frozenset({"metadata", "response_format", "output_config", "output_format", "functions", "logit_bias"})
"""Fields of a request with names of the client's choice: labels and schemas."""
_CALLS: Final = frozenset({"tool_calls", "function_call"})
_SCHEMAS: Final = _CALLS | {"parameters", "input_schema"}
"""The same within messages, and within tools."""
_ADDRESSES: Final = ("https://", "http://", "data:")
"""Prefixes of a `file_id` that is a URL, which is fetched here."""
_MEDIA: Final = frozenset("url uri image_url audio_url video_url file_url file_id file_uri fileUri file_data".split())
"""Fields with the address of an image, a sound or a file."""
_KEPT_AT: Final = re.compile(
    r"(?!https?:)[a-z][a-z0-9+.-]{1,15}://|https?://generativelanguage\.googleapis\.com[:/]", re.IGNORECASE
)
"""Addresses that are read with the operator's rights: of buckets (`gs://`, `s3://`), of files of a host, of Google's Files API."""
ANYBODYS: Final = r"\A(?:data:|https?://(?!(?i:generativelanguage)))"
"""Begins addresses that are surely none of these. Others may be, and are looked at."""
_NAMES: Final = "|".join(sorted(KEPT_BY_PROVIDERS | WITH_ID))
_SLICE: Final = 524_288
_LONGEST: Final = 40 + max(map(len, KEPT_BY_PROVIDERS | WITH_ID))
"""More than the characters of the longest pattern."""
_MARKS: Final = re.compile(
    rf'"(?:{_NAMES})"|\\u00[2-7]|"(?!https?:)[A-Za-z][A-Za-z0-9+.-]{{1,15}}:(?:\\?/){{2}}|"(?i:https?:(?:\\?/){{2}}generativelanguage\.)'.encode()
)


def may_have_ids(body: bytes) -> bool:
    """True if a body may have such a field; names with escapes included. Quotes inside texts are escaped."""
    if len(body) <= _SLICE:
        return _MARKS.search(body) is not None
    # In slices, so that other threads may run between them.
    starts = range(0, len(body), _SLICE)
    return any(_MARKS.search(body, start, start + _SLICE + _LONGEST) is not None for start in starts)


def place_of_id(fields: Mapping[str, msgspec.Raw], *, dotted: bool = False) -> str | None:
    """Return the place of the first such id, if there is one."""
    named = (_named_in({name: raw_json.read(value)}, "", dotted) for name, value in fields.items() if name not in _FREE)
    return next((where for where in named if where is not None), None)


def _named_in(value: Any, where: str, dotted: bool) -> str | None:
    """Return the place of the first such field, if there is one."""
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        free = _free_in(value)
        kind = value.get("type")
        if dotted and where[-2:-1].isdecimal() and isinstance(kind, str):
            where = f"{where}{kind}."
        for name, field_value in value.items():
            is_address = isinstance(field_value, str) and field_value.startswith(_ADDRESSES)
            if name in KEPT_BY_PROVIDERS and name not in free and field_value is not None and not is_address:
                if dotted and where.endswith(".source."):
                    return where[:-1]
                return f"{where}{name}"
            if name in _MEDIA and isinstance(field_value, str) and _KEPT_AT.match(field_value):
                return f"{where}{name}"
            if name in WITH_ID and isinstance(field_value, dict) and field_value.get("id") is not None:
                return f"{where}{name}.id"
        inner = ((f"{where}{name}.", field_value) for name, field_value in value.items() if name not in free)
    elif isinstance(value, list):
        inner = (
            (f"{where}{at}." if dotted else f"{where[:-1]}[{at}].", field_value) for at, field_value in enumerate(value)
        )
    return next((place for at, field_value in inner if (place := _named_in(field_value, at, dotted)) is not None), None)


def _free_in(value: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields of an object with names of the client's choice."""
    kind = str(value.get("type"))
    if kind.endswith("tool_use"):
        return _CALLS | {"input"}
    if kind.endswith("_execution_output"):
        return _CALLS | {"file_id"}  # an assistant message: providers do not read it again
    if "name" in value:
        return _SCHEMAS
    return _CALLS
