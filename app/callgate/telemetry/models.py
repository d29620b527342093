"""Logs the calling modes and cooldowns of models."""

import structlog

from callgate.conversation.events import Responder


def log_choice(model: str, tool_calling: str, format: str, decided_by: str, detail: str = "") -> None:
    """Log how a model is asked for calls; a warning where that is unknown."""
    log = structlog.get_logger("callgate.models").bind(
        model=model, tool_calling=tool_calling, format=format, decided_by=decided_by
    )
    if detail:
        log.warning("tool_calling_unknown", detail=detail)
    else:
        log.info("tool_calling_detected")


def log_cooldown(responder: Responder, seconds: float) -> None:
    """Log the cooldown of a deployment; with 0 that it answers again."""
    log = structlog.get_logger("callgate.models").bind(
        model=responder.model, deployment=responder.deployment, host=responder.host
    )
    if seconds:
        log.warning("upstream_left_alone", seconds=round(seconds, 1))
    else:
        log.info("upstream_back")
