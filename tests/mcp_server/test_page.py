"""The page for users of MCP clients says what is so."""

import json
import re

from callgate.mcp_server.protocol import LEGACY, MODERN
from tests.docs.test_pages import DOCUMENTS

PAGE = DOCUMENTS["mcp-server.md"].read_text("utf-8")


def test_the_blocks_for_clients_are_json_and_name_the_server_and_a_key() -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert len(blocks) >= 3
    for block in blocks:
        [(name, entry)] = (block.get("mcpServers") or block["servers"]).items()
        assert name == "callgate"
        if "url" in entry:
            assert entry["url"] == "http://127.0.0.1:8000/mcp"
            assert entry["headers"]["Authorization"].startswith("Bearer ${")
        else:
            assert entry["args"][:2] == ["mcp", "serve"]


def test_every_revision_that_is_served_is_named() -> None:
    assert all(revision in PAGE for revision in (*MODERN, *LEGACY))
