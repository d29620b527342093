"""The upstream itself: a model provider on a loopback port of its own, in the event loop of the test."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from tests.scripted_upstream.agent import BASES
from tests.scripted_upstream.anthropic_face import AnthropicFace
from tests.scripted_upstream.faces import Asked, Face, encode
from tests.scripted_upstream.gemini_face import GeminiFace
from tests.scripted_upstream.history import Rejection, parse
from tests.scripted_upstream.http import BadHttp, ClientDisconnected, Connection, HttpRequest, WatchedProtocol
from tests.scripted_upstream.names import Behaviour, behaviour
from tests.scripted_upstream.openai_face import CREATED, OpenAIFace
from tests.scripted_upstream.play import JSON, Player, WrongForm
from tests.scripted_upstream.records import GEMINI_PATH, RequestLog, RequestRecord, Stats
from tests.scripted_upstream.replay import case_reply
from tests.scripted_upstream.script import Chooser, Reply, Script

FACES: Mapping[str, Face] = {"/chat/completions": OpenAIFace(), "/messages": AnthropicFace()}
GEMINI = GeminiFace()
CLOSING_PATIENCE = 20.0
"""Seconds that connections get to end after they were cancelled; more means that one of them is stuck."""


class Upstream:
    """Plays scripts, keeps a record of every request, and checks them as strictly as OpenAI does.

    Used as an async context manager. Leaving it raises when something went on that must fail a test: a request
    that OpenAI would refuse, a script that ran out, a crash of the upstream's own.
    """

    def __init__(self, *, key: str | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self.key = key
        """The bearer key to demand; None takes any."""
        self.requests = RequestLog()
        self.stats = Stats()
        self.problems: list[str] = []
        """What fails the test at the end; a test may look, and take out what it expected."""
        self._host = host
        self._port = port
        self._scripts: dict[str, Script] = {}
        self._seen_by_name: dict[str, int] = {}
        self._rejections: list[Rejection] | None = None
        self._numbers = 0
        self._calls = 0
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Connection] = {}

    # What a test says ----------------------------------------------------------------------------

    def script(
        self,
        model: str,
        answers: Sequence[Reply] | Chooser,
        *,
        repeat_last: bool = False,
        lax: bool = False,
    ) -> Script:
        """Answers for one model, played in the order in which requests arrive, or chosen by a function."""
        self._scripts[model] = Script(answers, repeat_last=repeat_last, lax=lax)
        return self._scripts[model]

    def replay(self, case: Mapping[str, Any], model: str | None = None) -> str:
        """Plays one case of the corpus to whoever asks for it, and says which model to ask for."""
        name = model or str(case["id"])
        self.script(name, [case_reply(case)], repeat_last=True)
        return name

    @contextmanager
    def rejections_expected(self) -> Iterator[list[Rejection]]:
        """Inside, a refused request is collected here and not held against the test; there has to be one."""
        collected: list[Rejection] = []
        self._rejections = collected
        try:
            yield collected
        finally:
            self._rejections = None
        assert collected, "a refused request was expected, and none came"

    # Where it is ---------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        assert self._server is not None, "the upstream is not open"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The base URL of the OpenAI face."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The base URL of the Anthropic face, whose clients add `/v1` themselves."""
        return f"http://{self._host}:{self.port}"

    # Its life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if error is None:
            self.check()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: WatchedProtocol(self._connected), self._host, self._port, backlog=1024
        )
        self._port = self.port

    async def stop_listening(self) -> None:
        """New connections are refused from here on; the open ones go on. `open` takes the same port again."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Ends everything at once: answers that hang are let go."""
        await self.stop_listening()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=CLOSING_PATIENCE)
            assert not stuck, f"{len(stuck)} connections of the upstream did not end"

    def check(self) -> None:
        """Raises if anything happened that the test did not expect."""
        if self.problems:
            raise AssertionError("the upstream has complaints:\n  " + "\n  ".join(self.problems))

    # Connections ---------------------------------------------------------------------------------

    def _connected(self, connection: Connection) -> None:
        self.stats.connection_opened()
        task = asyncio.get_running_loop().create_task(self._serve(connection), name="upstream connection")
        self._connections[task] = connection
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self.stats.connections -= 1
        if not task.cancelled() and (crash := task.exception()) is not None:
            self.problems.append(f"the upstream crashed: {crash!r}")

    async def _serve(self, connection: Connection) -> None:
        try:
            while request := await connection.request():
                if not await self._route(connection, request) or not request.keep_alive:
                    break
        except BadHttp as bad:
            self.problems.append(f"not HTTP: {bad}")
        except (ClientDisconnected, ConnectionError):
            # the record of the request, if there was one, says so already
            return
        finally:
            connection.close()
            await connection.wait_closed()

    async def _route(self, connection: Connection, request: HttpRequest) -> bool:
        path = request.path.removeprefix("/v1") or "/"
        face = GEMINI if GEMINI_PATH.fullmatch(request.path) else FACES.get(path)
        if face is not None and request.method == "POST":
            return await self._chat(connection, request, face)
        status, body = self._page(request, path)
        await connection.answer(status, encode(body), JSON)
        return True

    def _page(self, request: HttpRequest, path: str) -> tuple[int, Any]:
        face = FACES["/chat/completions"]
        match request.method, path.split("/")[1:]:
            case "GET", ["health"]:
                return 200, {"status": "ok"}
            case "GET", ["__requests"]:
                return 200, [_summary(record) for record in self.requests]
            case "DELETE", ["__requests"]:
                self.requests.clear()
                self._seen_by_name.clear()
                return 200, {"ok": True}
            case "GET", ["__stats"]:
                return 200, asdict(self.stats)
            case "GET", ["models"]:
                return 200, {"object": "list", "data": [_model(name) for name in (*BASES, *self._scripts)]}
            case "GET", ["models", *rest] if self._known("/".join(rest)):
                return 200, _model("/".join(rest))
            case _:
                missing = Rejection(f"Unknown request URL: {request.method} {request.path}.", code="unknown_url")
                return 404, face.error_body(missing)

    # One exchange --------------------------------------------------------------------------------

    async def _chat(self, connection: Connection, request: HttpRequest, face: Face) -> bool:
        record = RequestRecord(self._numbers, request.method, request.path, request.headers, request.body)
        self._numbers += 1
        self.stats.request_started()
        try:
            return await self._answer(connection, record, face)
        except Rejection as refused:
            record.status, record.outcome = refused.status, f"rejected:{refused.status}"
            await connection.answer(refused.status, encode(face.error_body(refused)), JSON)
            return True
        except ClientDisconnected:
            if record.outcome in ("open", "fault:hang"):
                record.outcome = "client_disconnected"
                self.stats.disconnects += 1
            return False
        except asyncio.CancelledError:
            record.outcome = "released"
            raise
        finally:
            if record.outcome == "open":
                record.outcome = "crashed"
            self.stats.active -= 1
            record.closed.set()

    async def _answer(self, connection: Connection, record: RequestRecord, face: Face) -> bool:
        try:
            record.body = parse(record.raw)
        except Rejection as refused:
            self.requests.add(record)
            raise self._held_against(refused, record) from None
        self.requests.add(record)
        self._check_key(record)
        player = self._for(record)
        try:
            face.check(record.body, lax=player.lax)
        except Rejection as refused:
            raise self._held_against(refused, record) from None
        reply = self._reply(player, record)
        asked = Asked(record, f"chatcmpl-up{record.number}", self._new_call_id)
        try:
            return await Player(reply, asked, face, connection, record).play()
        except WrongForm as wrong:
            self.problems.append(f"request {record.number} for {record.model!r}: {wrong}")
            raise Rejection(str(wrong)) from None

    def _held_against(self, refused: Rejection, record: RequestRecord) -> Rejection:
        if self._rejections is not None:
            self._rejections.append(refused)
        else:
            place = f" ({refused.param})" if refused.param else ""
            self.problems.append(f"request {record.number} for {record.model!r} was refused: {refused.message}{place}")
        return refused

    def _check_key(self, record: RequestRecord) -> None:
        sent = record.headers.get("authorization", "")
        given = sent[7:] if sent.lower().startswith("bearer ") else record.headers.get("x-api-key", "")
        given = given or record.headers.get("x-goog-api-key", "")
        if self.key is not None and given != self.key:
            raise Rejection(
                "Incorrect API key provided.", status=401, code="invalid_api_key", type="authentication_error"
            )

    def _for(self, record: RequestRecord) -> Script | Behaviour:
        found = self._find(record.model)
        if found is None:
            message = f"The model `{record.model}` does not exist or you do not have access to it."
            raise Rejection(message, status=404, code="model_not_found")
        return found

    def _find(self, model: str) -> Script | Behaviour | None:
        return self._scripts.get(model) or self._scripts.get(model.rsplit("/", 1)[-1]) or behaviour(model)

    def _known(self, model: str) -> bool:
        return self._find(model) is not None

    def _reply(self, player: Script | Behaviour, record: RequestRecord) -> Reply:
        if isinstance(player, Behaviour):
            seen = self._seen_by_name.get(record.model, 0)
            self._seen_by_name[record.model] = seen + 1
            return player.reply(record, seen)
        reply = player.next(record)
        if reply is None:
            self.problems.append(f"the script of {record.model!r} has run out: request {player.played} came")
            raise Rejection("the script has run out", status=500, type="server_error")
        return reply

    def _new_call_id(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "scripted"}


def _summary(record: RequestRecord) -> dict[str, Any]:
    """A record for people; keys are shortened to their last four characters."""
    secret = ("authorization", "x-api-key", "x-goog-api-key")
    headers = {name: f"...{value[-4:]}" if name in secret else value for name, value in record.headers.items()}
    plain = ("number", "path", "model", "stream", "turn", "status", "outcome", "sent", "body")
    return {**{name: getattr(record, name) for name in plain}, "headers": headers}


def dump(upstream: Upstream) -> str:
    """Everything that was asked, as text to print when a test has failed."""
    return json.dumps([_summary(record) for record in upstream.requests], indent=1, ensure_ascii=False)
