"""What describing tools in a prompt costs, in each format: `python bench/prompt_tokens.py` prints the table of docs/text-calls.md.

Three tools of a usual size are described one by one, so that the fixed part and what each tool adds come apart. Tokens are
counted with OpenAI's cl100k, which litellm carries with it; other tokenizers are within a fifth of it on such text.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "app"), str(Path(__file__).resolve().parent.parent)]
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from callgate.text_calls.listings import ToolSpec
from callgate.text_calls.prompted import PromptCost
from callgate.text_calls.prompts import FORMATS, describe, style_for

TOOLS = (
    ToolSpec(
        "get_weather",
        "The weather in a city, now.",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name."},
                "units": {"type": "string", "enum": ["metric", "imperial"]},
            },
            "required": ["city"],
        },
    ),
    ToolSpec(
        "search_docs",
        "Searches the handbook and gives the passages that fit best.",
        {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 20}},
            "required": ["query"],
        },
    ),
    ToolSpec(
        "create_ticket",
        "Opens a ticket and gives its number.",
        {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "priority": {"type": "string", "enum": ["low", "normal", "high"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["title"],
        },
    ),
)

Count = Callable[[str], int]


def main() -> None:
    import litellm

    print(table(lambda text: litellm.token_counter(model="gpt-4", text=text)))


def table(count: Count) -> str:
    lines = ["| format | fixed | each tool | logged for three |", "|---|---|---|---|"]
    for format, fixed, each in sorted(map(row_of(count), FORMATS), key=lambda row: (row[1] + 3 * row[2], row[0])):
        lines.append(f"| `{format}` | {fixed} | {each} | {logged(format)} |")
    return "\n".join(lines)


def row_of(count: Count) -> Callable[[str], tuple[str, int, int]]:
    """A format with what it costs before any tool, the example of the first one included, and what each tool adds."""

    def row(format: str) -> tuple[str, int, int]:
        one, three = (count(describe(style_for(format), TOOLS[:number])) for number in (1, 3))
        each = round((three - one) / 2)
        return format, one - each, each

    return row


def logged(format: str) -> int:
    """What log, metrics and diagnostics would say of all three tools."""
    return PromptCost(len(describe(style_for(format), TOOLS))).tokens


if __name__ == "__main__":
    main()
