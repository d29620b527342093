"""`/admin/record`: whether texts of runs are kept, and the switch by which they are from now on."""

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from callgate.api.bodies import read_counted
from callgate.api.errors import encode, envelope_schema
from callgate.api.json_body import read_json_body
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body, caller_of, check_admin
from callgate.callers.caller import words_for
from callgate.conversation.errors import ChatError
from callgate.recorder.building import is_for_one_person, recorder_behind
from callgate.recorder.rules import policy_of
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.widenings import count_widened

BODY_BYTES = 1024


class TextsWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to keep texts, or to keep them no longer."""

    content: Literal["on", "off"]


def texts_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["runs"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}
    forbidden: dict[int | str, dict[str, Any]] = {403: {"description": "This key may not.", **error}}
    conflict = {"description": "The config decides, or the server has several processes.", **error}

    @router.get("/admin/record", summary="Whether texts of runs are kept, and who decides it", responses=forbidden)
    async def texts(request: Request) -> Response:
        check_admin(manager.current, caller_of(request, "admin"))
        return _json(_facts(manager))

    @router.post(
        "/admin/record",
        summary="Keep the texts of runs from now on, or no longer, until the server ends",
        responses=forbidden | {409: conflict},
    )
    async def keep_texts(request: Request) -> Response:
        caller = caller_of(request, "admin")
        check_admin(manager.current, caller)
        body = await read_counted(request.receive, BODY_BYTES)
        check_admin(manager.current, caller_after_body(manager, context_of(request.scope)))
        wanted = read_json_body(body, TextsWanted, '{"content": "on"}')
        if why := _why_fixed(manager):
            raise ChatError(409, why, code="record_is_fixed")
        recorder = recorder_behind(manager.recorder)
        keeps_texts = wanted.content == "on"
        if keeps_texts and not recorder.keeps_texts:
            widened = ["record.content says nothing, and texts are kept as by `on` until the server ends"]
            count_widened(manager.metrics, widened, by=words_for(caller), through="POST /admin/record")
        recorder.keeps_texts = keeps_texts
        manager.current.record_as(policy_of(manager.current.config.record, keeps_texts=keeps_texts))
        return _json(_facts(manager))

    return router


def _facts(manager: RuntimeManager) -> dict[str, Any]:
    config = manager.current.config
    content = config.record.content
    if content is None:
        content = recorder_behind(manager.recorder).keeps_texts
    return {
        "object": "record",
        "content": "on" if content else "off",
        "in_memory": config.record.content is None and not content and is_for_one_person(config),
        "is_written": bool(content and config.data_dir is not None),
        "fixed": _why_fixed(manager),
    }


def _why_fixed(manager: RuntimeManager) -> str | None:
    """Return why texts cannot be switched on or off here; None where they can."""
    record = manager.current.config.record
    if record.content is not None:
        return f"The config says `record: {{content: {'on' if record.content else 'off'}}}`; change it there."
    if record.runs == "off":
        return "The config says `record: {runs: off}`: no run is recorded."
    if manager.is_one_of_many:
        return "This server has several processes: write `record: {content: on}` into its config, and reload it."
    return None


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json", headers={"cache-control": "no-store"})
