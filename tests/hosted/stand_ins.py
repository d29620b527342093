"""Tools for tests that stand for those of a provider, as entries of `tools`."""

from typing import Any

from callgate.calls.outcome import Image
from callgate.tools.kinds.python.authoring import ToolError

RESULT = """1. Rust 2.0
https://rust.example/2
Rust 2.0 is out.

2. The Rust blog
https://blog.example/rust
What is new in it."""
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(40)


async def find(query: str) -> str:
    """Search the web."""
    if query == "nothing":
        raise ToolError("The search engine is away.")
    return RESULT


async def find_within(
    query: str, allowed_domains: list[str] | None = None, blocked_domains: list[str] | None = None, country: str = ""
) -> str:
    """Search the web, within domains."""
    return f"allowed {allowed_domains} blocked {blocked_domains} country {country}"


async def get_page(url: str) -> str:
    """Fetch a page."""
    return f"The page at {url}"


async def run_code(code: str) -> str:
    """Run a program."""
    if "raise" in code:
        raise ToolError("Traceback: boom")
    return "42\n"


async def search_files(query: str) -> str:
    """Search files."""
    return "Holidays are booked in the portal."


async def draw(prompt: str, size: str = "") -> Image:
    """Draw something."""
    return Image(PIXEL, "image/png")


def entry(name: str, **settings: Any) -> dict[str, Any]:
    """The entry of a tool of these, which only reads."""
    return {"kind": "python", "function": f"{__name__}:{name}", "safety": "read_only", **settings}


EVERY = {
    "web_search": "find",
    "web_fetch": "get_page",
    "code_interpreter": "run_code",
    "file_search": "search_files",
    "image_generation": "draw",
}
EVERY_ENTRY = [entry(name) for name in EVERY.values()]
