"""The page `docs/parameters.md`: written from what came of a walk, never by hand.

python -m tests.parameters           # walks, and writes the page
python -m tests.parameters declared  # reads the SDKs again first
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from tests.harness.environment import ROOT
from tests.parameters.done_here import why_here
from tests.parameters.places import versions
from tests.parameters.walk import GAP, HERE, LANES, PART, Outcomes

PAGE = ROOT / "docs" / "parameters.md"

HEAD = """\
# Parameters

What becomes of every field, item, part and type of tool that the official SDKs declare for a request, on each API and each
way to a provider. A test walks them all (`tests/parameters`) and fails when this page says something else, or when a new SDK
declares something that is not here.

- **passed on**: the provider is sent it under its name, with its value.
- **worded**: the provider is sent it in the words of its own API.
- **done here**: Callgate does it; the number is that of a note below.
- **refused**: a 400 (or a 403) whose `param` or words name it.
- **named**: the answer has no effect of it and says so: in the header `x-callgate-warning` and in `x_callgate.warnings`.
- **gap**: none of these yet. It has no effect, and nothing says so, or a refusal does not say that it was this.

What declares a tool that providers run has one more: {mapped}.

What is inside of something that is refused or named has no row. The columns are {lanes}. What is inside of a field of a
response or a message is walked on three of them, because such a request becomes a chat; a row then speaks of those.
"""
COLUMNS: Mapping[str, str] = {
    "passed": "`passed` (a chat API, and no tool of the config, so that a chat is passed through)",
    "direct": "`direct` (the same with a tool of the config)",
    "text": "`text` (the same, with calls written as text)",
    "responses": "`responses` (the Responses API)",
    "claude": "`claude` (Anthropic's own API)",
    "gemini": "`gemini`",
    "bedrock": "`bedrock`",
    "cohere": "`cohere`",
    "mistral": "`mistral` (a chat API whose requests litellm words)",
    "litellm": "`litellm` (litellm asks)",
}
OF_MAPPED = "`mapped` (as `direct`, where tools of the config stand for those that providers run, [hosted-tools](hosted-tools.md))"
TITLES: Mapping[str, str] = {
    "chat": "Chat Completions",
    "responses": "Responses",
    "messages": "Messages",
}


def page(outcomes: Outcomes) -> str:
    notes: list[str] = []
    parts = [HEAD.format(lanes=", ".join(COLUMNS[lane] for lane in LANES), mapped=OF_MAPPED)]
    for api, title in TITLES.items():
        rows = [_row(api, path, row, notes) for path, row in _grouped(api, outcomes)]
        lines = ["| place | what becomes of it |", "|---|---|", *rows]
        parts += [f"## {title}", f"As {versions()[api]} declares it.", "\n".join(lines)]
    parts += ["## Done here", "\n".join(f"{number}. {why}" for number, why in enumerate(notes, 1))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def gaps(outcomes: Outcomes) -> list[str]:
    """Return the places that are dropped without a word, or refused without their names, each with its lanes."""
    rows = (
        (f"{api} {path}", [lane for lane, outcome in row.items() if outcome == GAP])
        for (api, path), row in outcomes.items()
    )
    return [f"{place}: {', '.join(lanes)}" for place, lanes in rows if lanes]


def _grouped(api: str, outcomes: Outcomes) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Join neighbours in the same object of which the same becomes."""
    names: list[str] = []
    above = ""
    before: Mapping[str, str] = {}
    for (of, path), row in outcomes.items():
        if of != api or not any(row.values()):
            continue
        parent, dot, name = path.rpartition(".")
        if names and dot and (parent, _reasoned(api, path, row)) == (above, before):
            names.append(f".{name}")
            continue
        if names:
            yield ", ".join(f"`{name}`" for name in names), before
        names = [path]
        above = parent
        before = _reasoned(api, path, row)
    yield ", ".join(f"`{name}`" for name in names), before


def _reasoned(api: str, path: str, row: Mapping[str, str]) -> Mapping[str, str]:
    """Return a row with why something is done here."""
    return {
        lane: f"{HERE}|{why_here(api, path, lane)}" if outcome == HERE else outcome
        for lane, outcome in row.items()
        if outcome != PART
    }


def _row(api: str, path: str, row: Mapping[str, str], notes: list[str]) -> str:
    by_outcome: dict[str, list[str]] = {}
    for lane, outcome in row.items():
        word, _, why = outcome.partition("|")
        if why:
            if why not in notes:
                notes.append(why)
            word = f"{word} ({notes.index(why) + 1})"
        by_outcome.setdefault(word, []).append(lane)
    if len(by_outcome) == 1:
        text = next(iter(by_outcome))
    else:
        text = "; ".join(f"{outcome}: {_lanes(lanes)}" for outcome, lanes in by_outcome.items())
    return f"| {path} | {text} |"


def _lanes(lanes: Sequence[str]) -> str:
    others = [lane for lane in LANES if lane not in lanes]
    if not others:
        return "all others"
    if 0 < len(others) <= 2 and len(lanes) > 5:
        return f"all but {', '.join(others)}"
    return ", ".join(lanes)


def differences(old: str, new: str) -> list[str]:
    """Return the rows of which a page says something else, as it should say it."""
    known = set(re.split(r"\n", old))
    return [line for line in new.split("\n") if line not in known]
