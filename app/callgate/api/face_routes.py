"""The routes of all faces: an endpoint for each API, and the routes of its durable runs."""

from collections.abc import Mapping
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from callgate.api.azure import AZURE_PATH, AzureChatFace
from callgate.api.chat import ChatFace
from callgate.api.durable_routes import durable_routes
from callgate.api.durable_runs import DurableRuns
from callgate.api.endpoint import FaceEndpoint
from callgate.api.errors import MESSAGES
from callgate.api.messages.counting import CountEndpoint
from callgate.api.messages.face import MessagesFace
from callgate.api.responses.background import BackgroundRuns, ResponsesResumer
from callgate.api.responses.face import ResponsesFace
from callgate.api.responses.input_tokens import InputTokens
from callgate.api.responses.routes import response_routes
from callgate.api.responses.stored import StoredResponses
from callgate.api.responses.websocket import ResponsesSocket
from callgate.runtime.manager import RuntimeManager

CHAT_PATHS: Final = ("/v1/chat/completions", "/chat/completions")
RESPONSES_PATHS: Final = ("/v1/responses", "/responses")


def add_faces(app: FastAPI, manager: RuntimeManager, runs: DurableRuns) -> Mapping[tuple[str, str], ASGIApp]:
    """Add the routes; return those that the middleware calls directly."""
    chat = FaceEndpoint(manager, ChatFace(manager), runs)
    for path in CHAT_PATHS:
        app.router.routes.append(Route(path, chat, methods=["POST"], name="create_chat_completion"))
    azure = FaceEndpoint(manager, AzureChatFace(manager), runs)
    app.router.routes.append(Route(AZURE_PATH, azure, methods=["POST"], name="create_chat_completion_azure"))
    messages = FaceEndpoint(manager, MessagesFace(manager), runs)
    app.router.routes.append(Route(MESSAGES, messages, methods=["POST"], name="create_message"))
    counting = CountEndpoint(manager)
    app.router.routes.append(Route(f"{MESSAGES}/count_tokens", counting, methods=["POST"], name="count_tokens"))
    kept = StoredResponses(manager.responses)
    background = BackgroundRuns(app, kept, manager.claims.processes, runs)
    manager.closers.append(background.close)
    face = ResponsesFace(manager, kept, background)
    responses = FaceEndpoint(manager, face, runs)
    runs.add(ResponsesFace.__name__, ResponsesResumer(responses, background))
    input_tokens = InputTokens(manager, face)
    socket = ResponsesSocket(manager)
    for path in RESPONSES_PATHS:
        app.router.routes.append(Route(path, socket, methods=["GET"], name="responses_socket"))
        app.router.routes.append(Route(path, responses, methods=["POST"], name="create_response"))
        app.router.routes.append(
            Route(path + "/input_tokens", input_tokens, methods=["POST"], name="count_input_tokens")
        )
        app.router.routes.extend(response_routes(path, kept, background, manager))
    app.include_router(durable_routes(manager, runs))
    faces = dict.fromkeys(CHAT_PATHS, chat) | dict.fromkeys(RESPONSES_PATHS, responses) | {MESSAGES: messages}
    return {("POST", path): face for path, face in faces.items()}
