"""The page `docs/clients.md`: written from what came of a run, never by hand.

    make clients        # plays the matrix and writes the page

Every run holds the page against what it saw. Of a client that was skipped, or not asked for, it says nothing, and
writing keeps that client's last row with a mark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.behaviours import BEHAVIOURS, COLUMNS
from tests.clients.clients import CLIENTS, Client
from tests.harness.environment import AGENTS, CLAUDE_CODE, QWEN_CODE, ROOT, locked_version

PAGE = ROOT / "docs" / "clients.md"
WRITE = "CALLGATE_CLIENTS_TABLE"
"""`write` in this variable has the run write the page."""
OLD = " †"

HEAD = """\
# Clients

Real clients, each of them pointed at a served Callgate while tools run behind it. `make clients` plays them and writes
this page; `make test` plays the SDKs of OpenAI and Anthropic as well, and a short form of most others, and fails when the page says
something else. How it is done is in `tests/clients/`.

"""
AGENTS_TEXT = """\
Codex and opencode work on a task whose model calls a tool of the config and then the agent's own shell: both run where they belong, and
the model sees each of its turns once (`tests/clients/test_coding_agents.py`). For all of them ten rounds of a tool of the config go into
one answer, and none compacts its small conversation (`tests/clients/test_compaction.py`). They only stream. They are played where
`python -m tests.harness.environment agents claude-code qwen-code` was run, which is 1.2 GB.

Clients that send their whole history back in shapes of their own are played by `tests/clients/test_histories.py`: the OpenAI Agents SDK
with approvals (run, streamed with a session, interrupted and resumed), and Mastra on its default OpenAI model, with tools of both sides over
two turns, where `python -m tests.harness.environment mastra` was run (140 MB). Claude Code reads a PDF in `tests/clients/test_documents.py`.

"""
LEGEND = "`yes`: all of it works. `part`: some of it, see the note. `-`: the client has no such thing, or does not let us give it."


@dataclass(slots=True)
class Results:
    """What came of each case of the run."""

    outcomes: dict[tuple[str, str], str] = field(default_factory=dict)

    def take(self, client: Client, behaviour: str, report: pytest.TestReport) -> None:
        """The worst of the phases counts."""
        case = client.name, behaviour
        if report.failed:
            self.outcomes[case] = "failed"
        elif report.skipped:
            self.outcomes.setdefault(case, "skipped")
        elif report.when == "call":
            self.outcomes.setdefault(case, "passed")

    def played(self, client: Client) -> bool:
        """Whether all of a client's cases were played, and passed."""
        names = [behaviour.name for behaviour in BEHAVIOURS if behaviour.name not in client.cannot]
        return all(self.outcomes.get((client.name, name)) == "passed" for name in names)


RESULTS = pytest.StashKey[Results]()


def page(results: Results, before: str) -> str:
    """The page as this run would have it."""
    notes: list[str] = []
    old = _rows(before)
    rows = [_row(client, notes) if results.played(client) else _kept(client, old, notes) for client in CLIENTS]
    lines = [_line(["client", "version", *COLUMNS]), _line(["---"] * (len(COLUMNS) + 2)), *filter(None, rows)]
    parts = ["\n".join(lines), LEGEND, *_notes(notes)]
    if any(OLD in row for row in rows):
        parts.append(f"{OLD.strip()} Not played when this page was last written; the row is that of an earlier run.")
    parts += ["## Coding agents", _agents()]
    parts += ["## What the columns mean", _meanings(), "## Pointing them at Callgate", _pointing()]
    return HEAD + "\n\n".join(parts) + "\n"


def differences(results: Results, before: str) -> Iterator[str]:
    """Rows of the page that this run contradicts."""
    old, new = _rows(before), _rows(page(results, before))
    for client in CLIENTS:
        if results.played(client) and old.get(client.title) != new[client.title]:
            yield client.title


def _row(client: Client, notes: list[str]) -> str:
    cells = (_cell(client, column, notes) for column in COLUMNS)
    return _line([client.title, _versions(client), *cells])


def _cell(client: Client, column: str, notes: list[str]) -> str:
    names = [behaviour.name for behaviour in BEHAVIOURS if behaviour.column == column]
    reasons = [client.cannot[name] for name in names if name in client.cannot]
    had = len(reasons) < len(names)
    word = "-" if not had else "part" if reasons else "yes"
    return " ".join([word, *(_mark(reason, notes) for reason in dict.fromkeys(reasons))])


def _mark(reason: str, notes: list[str]) -> str:
    if reason not in notes:
        notes.append(reason)
    return f"({notes.index(reason) + 1})"


def _kept(client: Client, old: Mapping[str, Sequence[str]], notes: list[str]) -> str:
    """The last row there was, with the reasons numbered as they are now; none if the client is new."""
    if client.title not in old:
        return ""
    versions, *cells = old[client.title]
    fresh = []
    for column, cell in zip(COLUMNS, cells, strict=False):
        names = [behaviour.name for behaviour in BEHAVIOURS if behaviour.column == column]
        reasons = dict.fromkeys(client.cannot[name] for name in names if name in client.cannot)
        fresh.append(" ".join([cell.split(" ")[0], *(_mark(reason, notes) for reason in reasons)]))
    return _line([client.title, versions.removesuffix(OLD) + OLD, *fresh])


def _rows(text: str) -> dict[str, Sequence[str]]:
    """The first table of a page: from a client's title to its other cells."""
    rows: dict[str, Sequence[str]] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            break
        if line.startswith("| ") and not line.startswith(("| client", "| ---")):
            title, *cells = line.strip("| ").split(" | ")
            rows[title] = cells
    return rows


def _versions(client: Client) -> str:
    (_, first), *others = client.versions.items()
    return ", ".join([first, *(f"{package} {version}" for package, version in others)])


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield "  \n".join(f"({number}) {reason}." for number, reason in enumerate(notes, 1))


def _meanings() -> str:
    return "\n".join(f"- **{column}**: {meaning}" for column, meaning in COLUMNS.items())


def _agents() -> str:
    claude_code = locked_version(CLAUDE_CODE, "@anthropic-ai/claude-code")
    codex = locked_version(AGENTS, "@openai/codex")
    opencode = locked_version(AGENTS, "opencode-linux-x64-baseline")
    qwen_code = locked_version(QWEN_CODE, "@qwen-code/qwen-code")
    rows = [
        _line(["agent", "version", "API", "how"]),
        _line(["---", "---", "---", "---"]),
        _line(["Claude Code", claude_code, "Messages", "[guide](guides/claude-code.md)"]),
        _line(["Codex CLI", codex, "Responses", "[guide](guides/codex.md)"]),
        _line(["opencode", opencode, "chat, Responses, Messages", "[guide](guides/opencode.md)"]),
        _line(["Qwen Code", qwen_code, "chat, Messages", "[guide](guides/qwen-code.md)"]),
    ]
    return AGENTS_TEXT + "\n".join(rows)


def _pointing() -> str:
    rows = [_line([client.title, client.pointed]) for client in CLIENTS]
    return "\n".join([_line(["client", "with"]), _line(["---", "---"]), *rows])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def read() -> str:
    return PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""


def write(results: Results, path: Path = PAGE) -> None:
    path.write_text(page(results, read()), encoding="utf-8")
