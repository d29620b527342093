"""The compliance suite of Open Responses against a served Callgate: `make conformance`.

The suite is the repository of that name, in the folder that `CALLGATE_OPENRESPONSES` names. It runs under bun, which is
taken from the path or from the folder's `node_modules`; without one, and its zod, both are fetched into `.cache` by npm.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from callgate.application import create_app
from tests.harness.configs import make_config
from tests.harness.process import output_of
from tests.harness.server import serve
from tests.scripted_upstream import Call, Reply, RequestRecord, Upstream

FOLDER = "CALLGATE_OPENRESPONSES"
SUITE = "bin/compliance-test.ts"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
PATIENCE = 300.0


def main() -> int:
    given = os.environ.get(FOLDER, "")
    folder = Path(given)
    if not given or not (folder / SUITE).exists():
        where = f"{FOLDER}={given or '(not set)'}"
        sys.stderr.write(f"SKIPPED: no suite of Open Responses. Looked for {SUITE} in {where}.\n")
        return 0
    folder, bun = _runnable(folder)
    results = asyncio.run(_run(folder, bun))["results"]
    failed = {result["id"] for result in results if result["status"] != "passed"}
    for result in results:
        why = "; ".join(result.get("errors") or ())[:200]
        sys.stdout.write(f"{result['status']:8} {result['id']}  {why}\n")
    passed = len(results) - len(failed)
    sys.stdout.write(f"{passed} of {len(results)} passed\n")
    return 1 if failed else 0


def _runnable(folder: Path) -> tuple[Path, str]:
    """A folder with all that the suite imports, and a bun. What is given is never written to."""
    local = folder / "node_modules" / ".bin" / "bun"
    bun = shutil.which("bun") or (str(local) if local.exists() else "")
    if bun and (folder / "node_modules" / "zod").exists():
        return folder, bun
    seed = hashlib.sha256((folder / SUITE).read_bytes() + str(folder.resolve()).encode()).hexdigest()[:12]
    made = CACHE / f"openresponses-{seed}"
    if not (made / ".made").exists():
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(folder, made, ignore=shutil.ignore_patterns("node_modules", ".git"))
        (made / "package.json").write_text('{"name": "suite", "type": "module"}', encoding="utf-8")
        install = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "bun@1", "zod@3")
        subprocess.run(install, cwd=made, check=True, timeout=PATIENCE)
        subprocess.run(("node", "node_modules/bun/install.js"), cwd=made, check=True, timeout=PATIENCE)
        (made / ".made").touch()
    return made, str(made / "node_modules" / ".bin" / "bun")


async def _run(folder: Path, bun: str) -> Any:
    async with Upstream() as provider:
        provider.script("m", _answer)
        async with serve(create_app(make_config(provider.url))) as url:
            arguments = (SUITE, "--base-url", f"{url}/v1", "--api-key", "k", "--model", "m", "--json")
            output, log = await output_of(bun, *arguments, seconds=PATIENCE, folder=folder)
    assert b"{" in output, log
    return json.loads(output[output.index(b"{") :])


def _answer(request: RequestRecord) -> Reply:
    if request.body.get("tools"):
        return Reply(calls=[Call("get_weather", {"location": "San Francisco"})])
    return Reply(text="One, two, three.", reasoning="They want it short.")


if __name__ == "__main__":
    sys.exit(main())
