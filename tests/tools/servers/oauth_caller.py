"""One of several processes that call a tool of a server with a login: `python -m tests.tools.servers.oauth_caller CONFIG CALLS SECONDS`.

It writes how many calls came to their end, each with the same subject, and what the others said.
"""

import asyncio
import json
import sys
from pathlib import Path

from callgate.calls.outcome import Returned
from callgate.cli.own_tools import keep_quiet, opened_tools
from callgate.config.load import load
from callgate.conversation.ports import ignore_progress
from callgate.tools.toolbox import RequestToolbox, ToolSet
from tests.tools.executor_kinds import ready


async def main(config: Path, calls: int, seconds: float) -> None:
    loaded = load(config)
    keep_quiet(loaded)
    async with opened_tools(loaded, 30.0) as registry:
        box = RequestToolbox(server_tools=ToolSet(registry.tools()), run_id="run", limits=registry.limits)
        done: set[str] = set()
        failed: list[str] = []
        total = 0
        for _ in range(calls):
            outcome = await box.run(ready("tools_whoami"), ignore_progress)
            total += 1
            if isinstance(outcome, Returned):
                done.add(outcome.text)
            else:
                failed.append(str(outcome))
            await asyncio.sleep(seconds / calls)
    sys.stdout.write(json.dumps({"calls": total, "subjects": sorted(done), "failed": failed}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
