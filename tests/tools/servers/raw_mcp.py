"""A tool server over standard streams, written without the SDK, so that it can do what no SDK would.

Run by its path as a process of its own: `raw_mcp.py [word…]`, where the words say how it misbehaves from the start.
Its tools are named for what they do.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

FLOOD_BYTES = 100 * 1024 * 1024
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "minLength": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
ANY = {"type": "object"}
HIDDEN = "Says \u200bhello.\U000e0049\U000e0067 \u202eNever mind.\u202c"
TOOLS: dict[str, dict[str, Any]] = {
    "answers": CITY, "raises": CITY, "hangs": CITY, "floods": CITY, "binary": CITY,
    "dies": ANY, "forks": ANY, "escapes": ANY, "pid": ANY, "environment": ANY, "progresses": ANY, "changes": ANY, "renames": ANY,
    "refuses": ANY, "strange": ANY, "half": ANY, "asks": ANY, "echo": ANY, "last_words": ANY, "chatters": ANY,
    "writes": ANY, "closes": ANY, "twice": ANY, "deep": ANY, "nan": ANY, "batch": ANY, "lists": ANY,
}  # fmt: skip

words = sys.argv[1:]
out = sys.stdout.buffer
lock = threading.Lock()
described = {name: "It " + name + "." for name in TOOLS} | {"echo": HIDDEN}
hints = {"answers": {"readOnlyHint": True}, "dies": {"destructiveHint": True}, "hangs": {"idempotentHint": True}}
cancelled: list[object] = []
lists: list[object] = []


def send(message: dict[str, Any]) -> None:
    with lock:
        out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        out.flush()


def result(id: object, *content: dict[str, Any], **more: Any) -> None:
    send({"id": id, "result": {"content": list(content), **more}})


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def forked(*, session: bool = False) -> int:
    """A grandchild that ignores SIGTERM and holds our output open."""
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    return subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdout=None, stderr=subprocess.DEVNULL, start_new_session=session
    ).pid


def listed() -> list[dict[str, Any]]:
    tools = []
    for name, schema in TOOLS.items():
        tool = {"name": name, "description": described[name], "inputSchema": schema}
        if name in hints:
            tool["annotations"] = hints[name]
        tools.append(tool)
    return tools


def call(id: object, name: str, arguments: dict[str, Any], token: object) -> None:  # noqa: PLR0912 - one short case for each tool
    match name:
        case "answers":
            structured = {"city": "Oslo", "degrees": 21}
            send({"id": id, "result": {"content": [], "structuredContent": structured}})
        case "writes":
            start = arguments.get("start", "").replace("ID", str(id))
            with lock:
                out.write((start + arguments["text"] * arguments["times"] + arguments.get("end", "") + "\n").encode())
                out.flush()
            if not start:
                result(id, text("done"))
        case "raises":
            result(id, text("the thermometer fell off"), isError=True)
        case "hangs":
            signal_begun()
        case "floods":
            with lock:
                out.write(b'{"jsonrpc":"2.0","id":"%s","result":{"content":[{"type":"text","text":"' % str(id).encode())
                for _ in range(FLOOD_BYTES // 65536):
                    out.write(b"x" * 65536)
                out.write(b'"}]}}\n')
                out.flush()
        case "binary":
            blob = {"uri": "", "blob": base64.b64encode(bytes(16384)).decode(), "mimeType": "application/octet-stream"}
            result(id, {"type": "resource", "resource": blob})
        case "dies":
            sys.stderr.write("out of paper\n")
            os._exit(3)
        case "last_words":
            result(id, text("goodbye"))
            os._exit(0)
        case "forks":
            result(id, text(str(forked())))
        case "escapes":
            result(id, text(str(forked(session=True))))
        case "lists":
            result(id, text(str(len(lists))))
        case "pid":
            result(id, text(str(os.getpid())))
        case "environment":
            result(id, text(json.dumps(dict(os.environ))))
        case "progresses":
            for step in (1, 2):
                params = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
                send({"method": "notifications/progress", "params": params})
                time.sleep(0.05)
            result(id, text("done"))
        case "changes":
            TOOLS["fresh"] = ANY
            described["fresh"] = "It is new."
            described["echo"] = "It changed its mind."
            result(id, text("changed"))
            send({"method": "notifications/tools/list_changed"})
        case "renames":
            TOOLS.clear()
            TOOLS["other"] = ANY
            described["other"] = "The only one."
            result(id, text("renamed"))
            send({"method": "notifications/tools/list_changed"})
        case "refuses":
            send({"id": id, "error": {"code": -32602, "message": "there is no such city"}})
        case "deep" | "nan" | "batch":
            whole = (
                b'{"jsonrpc":"2.0","id":"%s","result":{"content":[{"type":"text","text":"hello"}],"x":%%s}}'
                % str(id).encode()
            )
            with lock:
                value = {"deep": b"[" * 1_000_000 + b"]" * 1_000_000, "nan": b"NaN", "batch": b"1"}[name]
                out.write((b"[%s]\n" if name == "batch" else b"%s\n") % (whole % value))
                out.flush()
        case "strange":
            send({"id": id, "result": {"content": "not a list"}})
        case "half":
            with lock:
                out.write(b'this is no message\n{"jsonrpc":"2.0","method":"unheard/of"}\n')
            out.write(b'{"jsonrpc":"2.0","id":"%s","result":{"content":[{"type":"te' % str(id).encode())
            out.flush()
            time.sleep(0.02)
            out.write(b'xt","text":"lone \\ud800 surrogate, \xff broken byte"}]}}\n')
            out.flush()
        case "asks":
            send({"id": 77, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
            answers.wait(5)
            result(id, text(json.dumps(answer)))
        case "closes":
            os.close(1)
        case "twice":
            result(id, text("first"))
            result(id, text("second"))
            result("c999", text("nobody's"))
        case "chatters":
            for number in range(5000):
                send({"method": "notifications/message", "params": {"level": "info", "data": number}})
            result(id, text("said it all"))
        case _:
            result(id, text(json.dumps(arguments)))


def signal_begun() -> None:
    if place := os.environ.get("BEGUN"):
        Path(place).write_text("begun")


answers = threading.Event()
answer: dict[str, Any] = {}


def many_tools() -> list[dict[str, Any]]:
    return [
        {"name": f"tool{at}", "inputSchema": {"type": "object", "properties": {f"p{at}": {}}}} for at in range(2_000)
    ]


WIDTHS = {"wide_list": 30_000, "wide_pages": 10_000}
"""Values of the one tool on a page."""
ENDLESS = {"endless_list", "large_list", "wide_pages"}


def listing() -> dict[str, Any]:
    listed_tools: dict[str, Any] = {"tools": many_tools() if "many_tools" in words else listed()}
    if "large_list" in words:
        listed_tools["tools"] = [{"name": "large", "description": "x" * 1_000_000, "inputSchema": ANY}]
    if width := sum(WIDTHS.get(word, 0) for word in words):
        listed_tools["tools"] = [{"name": "wide", "inputSchema": {"type": "object", "enum": [{}] * width}}]
    if not ENDLESS.isdisjoint(words):
        listed_tools["nextCursor"] = str(time.monotonic_ns())
    if "odd_list" in words:
        odd = {"name": "odd", "description": "Odd.", "inputSchema": {"type": "object", "required": 5}}
        listed_tools["tools"] += [
            odd,
            {**odd, "name": "far", "inputSchema": {"$ref": "http://example.com/x"}},
            listed()[0],
        ]
    return listed_tools


def handle(message: dict[str, Any]) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    match method:
        case "server/discover":
            send({"id": id, "error": {"code": -32601, "message": "Method not found"}})
        case "initialize":
            send(
                {
                    "id": id,
                    "result": {
                        "protocolVersion": "1999-01-01" if "ancient" in words else "2025-06-18",
                        "capabilities": {"tools": {"listChanged": True}},
                        "serverInfo": {"name": "raw", "version": "1"},
                    },
                }
            )
        case "tools/list" if "deaf_once" in words and len(lists) == 1:
            lists.append(id)
        case "tools/list":
            lists.append(id)
            send({"id": id, "result": listing()})
            if "restless" in words:
                send({"method": "notifications/tools/list_changed"})
        case "tools/call":
            token = (params.get("_meta") or {}).get("progressToken")
            job = (id, params["name"], params.get("arguments") or {}, token)
            threading.Thread(target=call, args=job, daemon=True).start()
        case "notifications/cancelled":
            cancelled.append(params.get("requestId"))
            if place := os.environ.get("CANCELLED"):
                Path(place).write_text(str(params.get("requestId")))
        case None if id == 77:
            answer.update(message)
            answers.set()


def main() -> None:
    if "fails" in words:
        sys.exit("no licence found")
    if "silent" in words:
        time.sleep(600)
    if "endless" in words:
        while True:
            out.write(b"x" * 1_000_000)
    if "stubborn" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "leaves" in words:  # a fork that survives us, from the start
        sys.stderr.write(f"{forked()}\n")
    with contextlib.suppress(KeyboardInterrupt):
        for line in sys.stdin:
            handle(json.loads(line))
    if "stubborn" in words:
        time.sleep(600)


if __name__ == "__main__":
    main()
