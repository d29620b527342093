"""`/admin/keys`: makes, limits and revokes keys of the key store, for a key with `admin: on`.

A key gives away no more than it has: no right, no model, no tool and no limit beyond its own. What stands in the config is changed there.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import asdict, replace
from pydantic import ValidationError

from callgate.access.building import control_behind, key_entry
from callgate.access.key_store import FileKeys, NameTaken, key_facts, written_moment
from callgate.access.keys import KeyEntry, mint_key
from callgate.access.settings import Key
from callgate.api.bodies import read_counted
from callgate.api.errors import encode, envelope_schema, in_path
from callgate.api.json_body import read_json_body
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body, caller_of, check_admin
from callgate.callers.allowance import Allowance
from callgate.callers.caller import Caller, words_for
from callgate.config.schema.values import SHAPES
from callgate.conversation.errors import ChatError
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.tool_patterns import unknown_models
from callgate.tools.tool_filter import glob_matches, unmatched
from callgate.untrusted.doors import Opened
from callgate.untrusted.pydantic_readers import check_model

if TYPE_CHECKING:
    from callgate.access.ledger_keys import LedgerKeys

BODY_BYTES: Final = 16_384
EXAMPLE: Final = '{"name": "alice", "models": ["*"], "budget_per_day": 5}'
Number = int | float | None

audit = structlog.get_logger("callgate.audit")


class KeyWanted(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a request to make a key. What a field may say is checked as in the config."""

    name: str
    models: list[str] | None = None
    tools: list[str] | None = None
    approve: bool = False
    admin: bool = False
    see: Literal["none", "own", "all"] = "none"
    requests_per_minute: Number = None
    tokens_per_minute: Number = None
    parallel: Number = None
    budget_per_day: Number = None
    budget_per_month: Number = None
    expires: str | None = None


class LimitsWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for other limits. A limit that is left out stays, and null takes it away."""

    requests_per_minute: Number | msgspec.UnsetType = msgspec.UNSET
    tokens_per_minute: Number | msgspec.UnsetType = msgspec.UNSET
    parallel: Number | msgspec.UnsetType = msgspec.UNSET
    budget_per_day: Number | msgspec.UnsetType = msgspec.UNSET
    budget_per_month: Number | msgspec.UnsetType = msgspec.UNSET


def key_routes(manager: RuntimeManager) -> APIRouter:
    """Return the routes that write keys."""
    router = APIRouter(tags=["operating"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    answers: dict[int | str, dict[str, Any]] = {
        403: {"description": "This key may not, or gives away more than it has.", **error},
        409: {"description": "The key stands in the config, its name is taken, or there is no key store.", **error},
    }
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such key is in use.", **error}}
    keys = _Keys(manager)
    router.post(
        "/admin/keys",
        status_code=201,
        summary="Make a key, which is in this answer and nowhere else",
        responses=answers,
    )(keys.make)
    router.patch(
        "/admin/keys/{name}",
        summary="Give a key other limits",
        responses=answers | missing,
        openapi_extra=in_path("name"),
    )(keys.limit)
    router.delete(
        "/admin/keys/{name}",
        status_code=204,
        summary="Take a key out of use",
        responses=answers | missing,
        openapi_extra=in_path("name"),
    )(keys.revoke)
    return router


class _Keys:
    """Answers the requests. Parameters of the path are read from the request, see `in_path`."""

    def __init__(self, manager: RuntimeManager) -> None:
        self._manager = manager

    async def make(self, request: Request) -> Response:
        caller, body = await self._admin_with_body(request)
        wish = read_json_body(body, KeyWanted, EXAMPLE)
        secret, digest = mint_key()
        fields = {name: value for name, value in msgspec.structs.asdict(wish).items() if value is not None}
        entry = replace(key_entry(_checked({**fields, "hash": digest})), offer=caller.offer)
        self._check_gives_no_more(caller, entry)
        self._check_is_of_store(entry.name)
        is_first = self._manager.current.access.is_keyless
        if is_first and not entry.admin:
            message = "The first key should have `admin: true`: from then on nobody may make another without a key."
            raise ChatError(409, message, param="admin", code="first_key_needs_admin")
        try:
            await self._store().add(entry)
        except NameTaken:
            message = f"`{entry.name}` is the name of another key, perhaps of a revoked one."
            raise ChatError(409, message, param="name", code="key_name_taken") from None
        audit.warning("key_made", by=words_for(caller), key=entry.name, rights=_rights(entry), first=is_first)
        facts = {**key_facts(entry), "kept_in": "store", "object": "key", "key": secret, "first": is_first}
        return _json({**facts, "notes": self._notes(entry)}, 201)

    async def limit(self, request: Request) -> Response:
        caller, body = await self._admin_with_body(request)
        wish = read_json_body(body, LimitsWanted, '{"budget_per_day": 5, "parallel": null}')
        entry = self._entry(request.path_params["name"])
        changes = {name: value for name, value in msgspec.structs.asdict(wish).items() if value is not msgspec.UNSET}
        fields = {name: value for name, value in changes.items() if value is not None}
        checked = key_entry(_checked({"name": entry.name, "hash": entry.hash, **fields})).allowance
        allowance = replace(entry.allowance, **{name: getattr(checked, name) for name in changes})
        self._check_limits(caller, allowance)
        if not await self._store().limit(entry.name, allowance):
            raise _no_such_key(entry.name)
        audit.warning("key_limited", by=words_for(caller), key=entry.name, limits=_limits(allowance))
        return _json({**key_facts(replace(entry, allowance=allowance)), "kept_in": "store", "object": "key"})

    async def revoke(self, request: Request) -> Response:
        caller = self._admin(request)
        entry = self._entry(request.path_params["name"])
        if entry.name == caller.name:
            message = "A key cannot revoke itself: ask with another, or use `callgate keys revoke`."
            raise ChatError(409, message, code="key_revokes_itself")
        if not await self._store().revoke(entry.name):
            raise _no_such_key(entry.name)
        audit.warning("key_revoked", by=words_for(caller), key=entry.name)
        return Response(status_code=204)

    def _notes(self, entry: KeyEntry) -> list[str]:
        """Return which names of a key name nothing now; a tool server may yet bring the tool."""
        runtime = self._manager.current
        notes = [note for _, note in unknown_models(runtime.config, entry.models)]
        return [*notes, *map(str, unmatched(entry.tools, runtime.registry.tools()))]

    def _admin(self, request: Request) -> Caller:
        caller = caller_of(request, "admin")
        check_admin(self._manager.current, caller)
        return caller

    async def _admin_with_body(self, request: Request) -> tuple[Caller, Opened]:
        self._admin(request)
        body = await read_counted(request.receive, BODY_BYTES)
        caller = caller_after_body(self._manager, context_of(request.scope))
        check_admin(self._manager.current, caller)
        return caller, body

    def _store(self) -> "FileKeys | LedgerKeys":
        store = control_behind(self._manager.shared.control).keys
        if store is None:
            message = "There is no key store: the config has no `data_dir`, as in `data_dir: ./data`."
            raise ChatError(409, message, code="no_key_store")
        if self._manager.current.config.auth.mode == "off":
            message = "The config says `auth: off`, by which everyone is let in: a key would count for nothing."
            raise ChatError(409, message, code="keys_not_in_use")
        return store

    def _entry(self, name: str) -> KeyEntry:
        """Return a key of the store that is in use."""
        self._check_is_of_store(name)
        for key in self._store().all():
            if key.entry.name == name and key.revoked_at is None:
                return key.entry
        raise _no_such_key(name)

    def _check_is_of_store(self, name: str) -> None:
        if any(key.name == name for key in self._manager.current.config.keys):
            raise ChatError(409, f"`{name}` stands in the config: change it there.", param="name", code="key_in_config")

    def _check_gives_no_more(self, caller: Caller, entry: KeyEntry) -> None:
        """Raise where a key would have more than the one that makes it."""
        if entry.approve and not self._manager.current.access.may_approve(caller):
            raise _gives_more("approve", "this key may not decide about calls itself")
        for field, patterns, own in (("models", entry.models, caller.models), ("tools", entry.tools, caller.tools)):
            if beyond := [pattern for pattern in patterns if not _is_within(pattern, own)]:
                raise _gives_more(field, f"`{beyond[0]}` is beyond what this key may use itself")
        end = self._end_of(caller)
        if end is not None and (entry.expires_at is None or entry.expires_at > end):
            raise _gives_more("expires", f"this key ends itself, at {written_moment(end)}")
        self._check_limits(caller, entry.allowance)

    def _end_of(self, caller: Caller) -> float | None:
        """Return when the key that asks ends."""
        entries = [key_entry(key) for key in self._manager.current.config.keys]
        entries += [key.entry for key in self._store().all() if key.revoked_at is None]
        return next((entry.expires_at for entry in entries if entry.name == caller.name), None)

    def _check_limits(self, caller: Caller, allowance: Allowance) -> None:
        own = _limits(caller.allowance)
        limits = _limits(allowance)
        for name, most in own.items():
            if limits.get(name) is None or limits[name] > most:
                raise _gives_more(name, f"this key has {most:g} itself")


def _is_within(pattern: str, own: Sequence[str]) -> bool:
    """Return whether a pattern matches nothing that `own` does not."""
    if "*" in own or pattern in own:
        return True
    return not set(pattern) & set("*?[") and any(glob_matches(glob, pattern) for glob in own)


def _checked(fields: Mapping[str, Any]) -> Key:
    """Return a key by the rules of the config. Raises `ChatError` 400."""
    try:
        return check_model(Key, dict(fields))
    except ValidationError as invalid:
        first = invalid.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = SHAPES.get(first.get("ctx", {}).get("pattern", ""), first["msg"])
        raise ChatError(400, f"`{where}`: {why}.", param=where, code="invalid_value") from None


def _limits(allowance: Allowance) -> dict[str, float]:
    return {name: value for name, value in asdict(allowance).items() if value is not None}


def _rights(entry: KeyEntry) -> list[str]:
    rights = [right for right, has_it in (("approve", entry.approve), ("admin", entry.admin)) if has_it]
    if entry.see != "none":
        rights.append(f"see {entry.see}")
    return rights


def _gives_more(param: str, why: str) -> ChatError:
    message = f"A key cannot give away more than it has: {why}."
    return ChatError(403, message, type="permission_error", param=param, code="key_gives_more")


def _no_such_key(name: str) -> ChatError:
    return ChatError(404, f"No key `{name[:64]}` of the key store is in use.", code="key_not_found")


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json", headers={"cache-control": "no-store"})
