"""All commands of `callgate`, from the packages that they belong to."""

from callgate.access.commands import keys
from callgate.cli.chat import chat
from callgate.cli.checking import check
from callgate.cli.doctor import doctor
from callgate.cli.group import SuggestingCommand, new_app
from callgate.cli.init import init
from callgate.cli.reload import reload
from callgate.cli.serving import health, serve
from callgate.fleet.commands import pools, worker
from callgate.mcp_server.commands import add_serving
from callgate.models.commands import models
from callgate.recorder.commands.runs import runs
from callgate.recorder.commands.usage import usage
from callgate.state.commands.calls import calls
from callgate.state.commands.ledger import ledger
from callgate.tools.approvals.commands import approvals
from callgate.tools.commands import tools
from callgate.tools.kinds.mcp.commands import mcp

app = new_app()
for command in (init, serve, check, doctor, models, chat, health, reload, calls, usage, worker, pools):
    app.command(cls=SuggestingCommand)(command)
app.add_typer(tools, name="tools")
add_serving(mcp)
app.add_typer(mcp, name="mcp")
app.add_typer(approvals, name="approvals")
app.add_typer(keys, name="keys")
app.add_typer(runs, name="runs")
app.add_typer(ledger, name="ledger")
