"""`/admin`: routes for the operator (reload, keys), and the permissions of a request's own key."""

import asyncio
import time
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec.structs import asdict

from callgate.access.building import control_behind, key_entry
from callgate.access.key_store import key_facts
from callgate.access.limits import day_of, month_of
from callgate.access.routes.keys import key_routes
from callgate.api.bodies import read_counted
from callgate.api.errors import encode, envelope_schema
from callgate.api.json_body import read_json_body
from callgate.api.middleware import context_of
from callgate.api.rights import caller_after_body, caller_of, check_admin
from callgate.callers.allowance import Allowance
from callgate.callers.caller import Caller, accounts_of, words_for
from callgate.config.problems import ConfigError
from callgate.conversation.errors import ChatError
from callgate.conversation.prices import NANO
from callgate.recorder.building import recorder_behind
from callgate.recorder.recorder import Recorder
from callgate.recorder.store import StoreUnusable
from callgate.recorder.usage import grouped
from callgate.runtime.manager import RuntimeManager
from callgate.runtime.reload import ConfigWidens
from callgate.runtime.runtime import Runtime

BODY_BYTES = 4096


class ReloadWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to reload."""

    widen: bool = False
    """Take a config that allows more than the one in use."""


def admin_routes(manager: RuntimeManager) -> APIRouter:
    router = APIRouter(tags=["operating"])
    error = {"content": {"application/json": {"schema": envelope_schema()}}}

    @router.get("/v1/key", summary="The name of this key, what it may do, its limits, and what is left of them")
    async def key(request: Request) -> Response:
        caller = caller_of(request, "key")
        facts = {"object": "key", **manager.current.access.rights(caller)}
        if not caller.anonymous:
            facts |= await _own_limits(manager, caller)
        return Response(encode(facts), media_type="application/json", headers={"cache-control": "no-store"})

    @router.post(
        "/admin/reload",
        summary="Read the config again",
        responses={
            403: {"description": "This key may not.", **error},
            409: {"description": "The config allows more than the one in use; nothing has changed.", **error},
            422: {"description": "The config has mistakes; nothing has changed.", **error},
        },
    )
    async def reload(request: Request) -> Response:
        caller = caller_of(request, "admin")
        check_admin(manager.current, caller)
        body = await read_counted(request.receive, BODY_BYTES)
        check_admin(manager.current, caller_after_body(manager, context_of(request.scope)))
        if body:
            options = read_json_body(body, ReloadWanted, '{"widen": true}')
        else:
            options = ReloadWanted()
        try:
            moved = await manager.reload(widen=options.widen, by=words_for(caller), through="POST /admin/reload")
        except ConfigWidens as refused:
            message = f'Nothing has changed, because this allows more: {refused}\nSend {{"widen": true}} (`callgate reload --widen`) if that is meant.'
            raise ChatError(409, message, code="config_widens") from None
        except ConfigError as mistakes:
            raise ChatError(422, f"Nothing has changed. {mistakes}", code="config_invalid") from None
        await manager.have_others_reload(widen=options.widen)
        return Response(encode({"object": "reload", **moved.facts()}), media_type="application/json")

    @router.get(
        "/admin/keys",
        summary="Every key with its rights, its limits, and what it has spent; no key and no hash",
        responses={403: {"description": "This key may not.", **error}},
    )
    async def keys(request: Request) -> Response:
        runtime = manager.current
        shared = manager.shared
        control = control_behind(shared.control)
        check_admin(runtime, caller_of(request, "admin"))
        listed = [key_facts(key_entry(key)) for key in runtime.config.keys]
        if control.keys is not None:
            listed += [key_facts(of_store.entry, of_store) for of_store in control.keys.all()]
        used = await asyncio.to_thread(_used, runtime, recorder_behind(shared.recorder))
        for facts in listed:
            if {"budget_per_day", "budget_per_month"} & facts["limits"].keys():
                spent = await control.limiter.spent(facts["name"])
                facts["spent"] = None if spent is None else {"day": spent[0] / NANO, "month": spent[1] / NANO}
            else:
                facts["spent"] = None if used is None else used.get(facts["name"], {"day": 0.0, "month": 0.0})
        return Response(
            encode({"object": "list", "data": listed}),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    router.include_router(key_routes(manager))
    return router


async def _own_limits(manager: RuntimeManager, caller: Caller) -> dict[str, Any]:
    """Return the limits of a key, what it has spent, and what is left of its budgets, in US dollars; of somebody who signed in those
    of his group, and under `member` those that he has beside them."""
    (name, allowance), *others = reversed(accounts_of(caller))
    facts = await _limits_of(manager, name, allowance)
    for own, alone in others:
        facts["member"] = await _limits_of(manager, own, alone)
    return facts


async def _limits_of(manager: RuntimeManager, name: str, allowance: Allowance) -> dict[str, Any]:
    limits = {name: value for name, value in asdict(allowance).items() if value is not None}
    spent: dict[str, float] | None = None
    if allowance.has_budget:
        nano = await control_behind(manager.shared.control).limiter.spent(name)
        if nano is not None:
            spent = {"day": nano[0] / NANO, "month": nano[1] / NANO}
    else:
        used = await asyncio.to_thread(_used, manager.current, recorder_behind(manager.shared.recorder))
        if used is not None:
            spent = used.get(name, {"day": 0.0, "month": 0.0})
    unspent = {}
    for period in ("day", "month"):
        budget = limits.get(f"budget_per_{period}")
        if budget is not None and spent is not None:
            unspent[f"budget_per_{period}"] = max(budget - spent[period], 0.0)
    return {"limits": limits, "spent": spent, "left": unspent}


def _used(runtime: Runtime, recorder: Recorder) -> dict[str, dict[str, float]] | None:
    """Return what each key has used today and this month, in US dollars, as far as prices are known; None where it cannot be
    read."""
    now = time.time()
    periods = {"day": day_of(now), "month": f"{month_of(now)}-01"}
    try:
        used = recorder.usage(periods["month"])
    except StoreUnusable:
        return None
    prices = {model: runtime.prices.of(model) for model in {spending.model for spending in used}}
    costs: dict[str, dict[str, float]] = {}
    for period, since in periods.items():
        for row in grouped((spending for spending in used if spending.day >= since), "key", prices):
            costs.setdefault(row["name"], {"day": 0.0, "month": 0.0})[period] = row["cost"]
    return costs
