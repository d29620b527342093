"""The routes of Chat Completions and Messages: an endpoint for each API."""

from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from callgate.api.endpoint import FaceEndpoint
from callgate.api.errors import MESSAGES
from callgate.api.run_ports import Runs
from callgate.chat.azure import AZURE_PATH, AzureChatFace, model_in
from callgate.chat.face import ChatFace
from callgate.messages.counting import CountEndpoint
from callgate.messages.face import MessagesFace
from callgate.runtime.manager import RuntimeManager

CHAT_PATHS: Final = ("/v1/chat/completions", "/chat/completions")


def add_faces(app: FastAPI, manager: RuntimeManager, runs: Runs) -> Mapping[tuple[str, str], ASGIApp]:
    """Add the routes; return those that the middleware calls directly."""
    chat = FaceEndpoint(manager, ChatFace(manager), runs)
    for path in CHAT_PATHS:
        app.router.routes.append(Route(path, chat, methods=["POST"], name="create_chat_completion"))
    azure = FaceEndpoint(manager, AzureChatFace(manager), runs, model_in)
    app.router.routes.append(Route(AZURE_PATH, azure, methods=["POST"], name="create_chat_completion_azure"))
    messages = FaceEndpoint(manager, MessagesFace(manager), runs)
    app.router.routes.append(Route(MESSAGES, messages, methods=["POST"], name="create_message"))
    counting = CountEndpoint(manager)
    app.router.routes.append(Route(f"{MESSAGES}/count_tokens", counting, methods=["POST"], name="count_tokens"))
    return {("POST", path): chat for path in CHAT_PATHS} | {("POST", MESSAGES): messages}
