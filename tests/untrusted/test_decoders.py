"""Decoders are called behind the door: outside it nothing calls one."""

import ast
from collections.abc import Iterator

from tests.harness.process import ROOT
from tests.harness.sources import trees_with

PACKAGE = ROOT / "app/callgate"
DOOR = PACKAGE / "untrusted"
DECODERS = frozenset(
    {
        "ast.literal_eval",
        "json.JSONDecoder",
        "json.load",
        "json.loads",
        "marshal.loads",
        "msgspec.json.Decoder",
        "msgspec.json.decode",
        "msgspec.msgpack.Decoder",
        "msgspec.msgpack.decode",
        "msgspec.toml.decode",
        "msgspec.yaml.decode",
        "pickle.loads",
        "pydantic_core.from_json",
        "tomllib.load",
        "tomllib.loads",
        "yaml.compose",
        "yaml.load",
        "yaml.parse",
        "yaml.safe_load",
        "yaml.scan",
    }
)
VALIDATORS = frozenset(
    {
        "TypeAdapter",
        "from_json",
        "model_validate",
        "model_validate_json",
        "model_validate_strings",
        "parse_obj",
        "parse_raw",
        "raw_decode",
        "validate_json",
        "validate_python",
    }
)
"""By their last name, whatever they are called on."""
OF_LITELLM = frozenset({"acompletion", "chunk_parser", "transform_parsed_response", "transform_response"})
"""What reads an answer in litellm."""
LANES = frozenset({"models/translated", "models/litellm_lane"})
"""Who hands them what the doors' readers made of an answer, or what `models/litellm_lane/tap` counted."""


def decoder_calls() -> Iterator[str]:
    """Yield the place of each reference to a decoder outside the door."""
    names = {decoder.rpartition(".")[2] for decoder in DECODERS}
    imports = [f"from {module} " for module in ("json", "msgspec.json", "pickle", "yaml")]
    for file, tree in trees_with([*names, *VALIDATORS, *imports]):
        if DOOR in file.parents:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute | ast.ImportFrom):
                continue
            if isinstance(node, ast.Attribute) and (
                node.attr in VALIDATORS or (node.attr in names and ast.unparse(node) in DECODERS)
            ):
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and f"{node.module}." in ("json.", "msgspec.json.", "pickle.", "yaml."):
                yield f"{file.relative_to(PACKAGE)}:{node.lineno}"


def test_no_decoder_is_called_outside_the_door() -> None:
    assert list(decoder_calls()) == [], "a new reader is made by `callgate.untrusted.readers`"


def test_litellm_reads_answers_on_its_lanes_alone() -> None:
    places = {
        str(file.parent.relative_to(PACKAGE))
        for file, tree in trees_with(OF_LITELLM)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in OF_LITELLM
    }
    assert places == LANES
