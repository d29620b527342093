"""Claude Code reads a PDF: what its tool brings does not end the session."""

from pathlib import Path
from typing import Any

import pytest

from callgate.application import create_app
from tests.clients.coding_agents import CLAUDE, MODEL, play
from tests.harness.configs import make_config
from tests.harness.environment import CLAUDE_CODE
from tests.harness.needs import needs
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs(f"environment:{CLAUDE_CODE}")]

PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 72 72]>>endobj
xref
0 4
0000000000 65535 f
0000000009 00000 n
0000000053 00000 n
0000000104 00000 n
trailer<</Size 4/Root 1 0 R>>
startxref
165
%%EOF
"""


@pytest.mark.parametrize("reads", [True, False], ids=["a model that reads PDFs", "a model that does not"])
async def test_claude_code_reads_a_pdf_and_goes_on(upstream: Upstream, tmp_path: Path, reads: bool) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(PDF)

    def answer(request: RequestRecord) -> Reply:
        if "Read" not in request.tool_names:
            return Reply(text="A title.")
        if not request.tool_results:
            return Reply(calls=[Call("Read", {"file_path": str(path)})])
        return Reply(text="Read it.")

    upstream.script(MODEL, answer)
    entry: dict[str, Any] = {"model_info": {"supports_pdf_input": reads}}
    async with serve(create_app(make_config(upstream.url, models=[MODEL], entry=entry))) as url:
        first, second = await play(CLAUDE, url, tmp_path, "read report.pdf", "and now?")
    for played in (first, second):
        result = played.events[-1]
        assert (result["type"], result["is_error"], result["result"]) == ("result", False, "Read it.")
    asked = str(upstream.requests[-1].body["messages"])
    assert ("application/pdf;base64" in asked) == reads
    assert ("left out: this model cannot read it" in asked) != reads
