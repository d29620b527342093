"""Reads what an SDK's types declare of its requests: each field, type of tool, item and part, with a sample of it.

Runs in the environment of that SDK, so that it imports nothing of ours:

    .cache/environments/openai-3-…/bin/python tests/parameters/declared.py openai

A place is written as a path: `reasoning.effort`, `tools[web_search].filters`, `input[message].content[input_image]`. What stands in
brackets is the kind of an entry of a list, or of an object that has several; `{}` is an object where a text would do. Its parent is the place that a sample of it contains.
"""

import importlib
import json
import sys
import types
import typing
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

ROOTS = {
    "openai": {
        "chat": "openai.types.chat.completion_create_params:CompletionCreateParamsBase",
        "responses": "openai.types.responses.response_create_params:ResponseCreateParamsBase",
    },
    "anthropic": {"messages": "anthropic.types.beta.message_create_params:MessageCreateParamsBase"},
}
NOT_SENT = {"messages": {"betas"}}
"""Arguments of the SDK that become headers."""
DEEPEST = {"input": 1, "messages": 1, "tools": 1, "system": 1}
"""Steps that are taken below a field of the body, in which an entry of a list counts as none; 3 below any other field."""
PARTS = ("content", "output")
"""Fields whose entries are shown although they are one step too deep."""
LEAVES = ("cache_control", "prompt_cache_breakpoint", "citations", "caller")
"""Fields that are one place, whatever is in them."""
KINDS = ("type", "role")
"""The fields that tell the types of a union apart."""

Place = dict[str, Any]


def places(package: str) -> Iterator[Place]:
    for api, root in ROOTS[package].items():
        module, _, name = root.partition(":")
        declared = typing.get_type_hints(getattr(importlib.import_module(module), name), include_extras=True)
        for field, annotation in declared.items():
            if field not in NOT_SENT.get(api, ()):
                for place in _below(field, annotation, "", DEEPEST.get(field, 3), ()):
                    place["body"] = {field: place.pop("value")}
                    yield {"api": api, **place}


def _below(path: str, annotation: Any, parent: str, left: int, seen: tuple[Any, ...]) -> Iterator[Place]:
    """Yield a place and all below it; the value of each is that of this place."""
    objects, other = _members(annotation)
    inner = _item_of(annotation)
    if inner is not None:
        inner_objects, _ = _members(inner)
        if not inner_objects:
            yield {"place": path, "parent": parent, "value": [_sample(inner, path)]}
            return
        for kind, item in inner_objects:
            for place in _object(f"{path}[{kind}]", kind, item, parent, left, seen):
                yield {**place, "value": [place["value"]]}
        return
    if not objects:
        yield {"place": path, "parent": parent, "value": _sample(annotation, path)}
        return
    if other:
        yield {"place": path, "parent": parent, "value": _sample(other[0], path)}
    for kind, member in objects:
        named = path
        if kind and (len(objects) > 1 or other):
            named = f"{path}[{kind}]"
        elif other:
            named = f"{path}{{}}"
        yield from _object(named, kind, member, parent, left, seen)


def _object(path: str, kind: str, member: Any, parent: str, left: int, seen: tuple[Any, ...]) -> Iterator[Place]:
    least = _least(member, path, seen)
    if "type" in least and kind in (words := _words(_fields(member)["type"])) and kind != words[0]:
        yield {"place": path, "parent": parent, "value": {**least, "type": kind}}  # another name of the same type
        return
    yield {"place": path, "parent": parent, "value": least}
    if member in seen or left < 0:
        return
    for name, annotation in _fields(member).items():
        if (name in KINDS and name in least) or (left == 0 and name not in PARTS):
            continue
        if path.endswith("_tool_result]") and not path.endswith("[tool_result]"):
            continue
        if name in LEAVES:
            yield {
                "place": f"{path}.{name}",
                "parent": path,
                "value": {**least, name: _sample(annotation, f"{path}.{name}")},
            }
            continue
        for place in _below(f"{path}.{name}", annotation, path, left - 1, (*seen, member)):
            yield {**place, "value": {**least, name: place["value"]}}


def _least(member: Any, path: str, seen: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return an object with its required fields, and with what tells its type."""
    fields = _fields(member)
    declared = typing.get_type_hints(member, include_extras=True)
    required = [
        name for name in fields if _is_required(member, declared[name]) or (name in KINDS and _words(fields[name]))
    ]
    least = {name: _sample(fields[name], f"{path}.{name}", (*seen, member)) for name in required}
    return least | {name: _words(fields[name])[0] for name in KINDS if name in least and _words(fields[name])}


def _is_required(member: Any, annotation: Any) -> bool:
    """The SDKs' annotations are strings, in which Python does not see what is required."""
    if str(typing.get_origin(annotation)).endswith("NotRequired"):
        return False
    return bool(member.__total__) or str(typing.get_origin(annotation)).endswith("Required")


def _fields(member: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(member)


def _sample(annotation: Any, path: str, seen: tuple[Any, ...] = ()) -> Any:
    if words := _words(annotation):
        return words[-1]
    inner = _item_of(annotation)
    objects, other = _members(annotation)
    if inner is not None:
        return [_sample(inner, path, seen)]
    if other:
        return _scalar(other[0], path)
    for _, member in objects:
        if member not in seen:
            return _least(member, path, seen)
    return {}


def _scalar(annotation: Any, path: str) -> Any:
    if words := _words(annotation):
        return words[-1]
    if (inner := _item_of(annotation)) is not None:
        return [_sample(inner, path)]
    origin = typing.get_origin(annotation) or annotation
    if origin is bool:
        return True
    if origin is int:
        return 1000 + zlib.crc32(path.encode()) % 9000
    if origin is float:
        return 0.25
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {"mark": f"m{zlib.crc32(path.encode())}"}
    if origin is object:
        return f"m{zlib.crc32(path.encode())}"
    return f"m{zlib.crc32(path.encode())}"


def _words(annotation: Any) -> tuple[Any, ...]:
    annotation = _plain(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return ()


def _item_of(annotation: Any) -> Any:
    """Return the type of the entries of a list; None where there is none, or a string will do."""
    annotation = _plain(annotation)
    options = [option for option in _options(annotation) if option is not type(None)]
    lists = [option for option in options if _is_list(option)]
    if lists and all(_is_list(option) or option is str for option in options):
        has_objects = bool(_members(typing.get_args(lists[0])[0])[0])
        if has_objects or len(options) == 1:
            return typing.get_args(lists[0])[0]
    return None


def _is_list(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, typing.Iterable) and not issubclass(origin, Mapping)


def _members(annotation: Any) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Return the objects that a value may be, by their kinds, and what else it may be."""
    objects: list[tuple[str, Any]] = []
    other: list[Any] = []
    for option in _options(_plain(annotation)):
        if isinstance(option, type) and hasattr(option, "__required_keys__"):
            objects += [(kind, option) for kind in _kinds(option)]
        elif option is not type(None) and not hasattr(option, "model_fields"):  # objects of answers may be sent back
            other.append(option)
    known: dict[str, Any] = {}
    for kind, option in objects:
        same = sum(named.rstrip("'") == kind for named in known)
        known[kind + "'" * same] = option  # another object of the same type
    return list(known.items()), other


def _kinds(member: Any) -> tuple[str, ...]:
    fields = _fields(member)
    for name in KINDS:
        if name in fields and (words := _words(fields[name])):
            return tuple(map(str, words if name == "type" else words[:1]))
    return ("",)


def _options(annotation: Any) -> tuple[Any, ...]:
    annotation = _plain(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(inner for option in typing.get_args(annotation) for inner in _options(option))
    return (annotation,)


def _plain(annotation: Any) -> Any:
    while typing.get_origin(annotation) in (typing.Annotated, typing.Required, typing.NotRequired) or (
        str(typing.get_origin(annotation)).endswith(("Required", "NotRequired"))
    ):
        annotation = typing.get_args(annotation)[0]
    return annotation


if __name__ == "__main__":
    package = sys.argv[1]
    version = importlib.import_module(package).__version__
    json.dump({"version": version, "places": list(places(package))}, sys.stdout, indent=0, ensure_ascii=False)
