"""An MCP server with one tool, over its standard input and output."""

import json
import sys
from typing import Any

ECHO = {
    "name": "echo",
    "description": "Gives the text back.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def result_of(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version = parameters["protocolVersion"]
            return {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "far", "version": "1"},
            }
        case "tools/list":
            return {"tools": [ECHO]}
        case "tools/call":
            return {"content": [{"type": "text", "text": parameters["arguments"]["text"]}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer = {
            "jsonrpc": "2.0",
            "id": request["id"],
            "result": result_of(request["method"], request.get("params", {})),
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
