"""What the site has besides the pages of this folder: the reference of the configuration, and pages of the project's root."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "README.md": "index.md",
    "config.yaml": "configuration.md",
    "docs/decisions/README.md": "decisions/index.md",
}
"""Files of the project and the pages that show them."""
CODE = ("app/", "tests/")
"""The site has no code: a link to it is shown as its text."""
OWN_PAGES = frozenset({"index.md", "configuration.md"})
"""Pages that are no copy of that file."""
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "configuration.md", content="\n".join(_reference())))
    for name, page in FROM_ROOT.items():
        if page not in OWN_PAGES:
            files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    numbered = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    config.nav[-1] = {"Design notes": ["decisions/index.md", *(f"decisions/{page.name}" for page in numbered)]}
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave this folder lead to the page that shows the file. What is not there, or on no page, is an error."""
    sources = {shown: name for name, shown in FROM_ROOT.items() if shown not in OWN_PAGES}
    here = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    depth = page.file.src_uri.count("/")

    def led(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = (here.parent / target).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            raise PluginError(f"{page.file.src_uri}: there is no {target}")
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(CODE):
            return text
        shown = FROM_ROOT.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(shown) is None:
            raise PluginError(f"{page.file.src_uri}: no page shows {target}")
        return f"[{text}]({'../' * depth}{shown}{anchor})"

    return LINK.sub(led, markdown)


def _reference() -> Iterator[str]:
    schema = json.loads((ROOT / "config.schema.json").read_text(encoding="utf-8"))
    definitions = schema["$defs"]
    yield "# Configuration"
    yield ""
    yield (
        "Every setting of `config.yaml`. Any value may come from an environment variable (`os.environ/NAME`, `${NAME}`, "
        "`${NAME:-default}`) or a file (`file:/path`). `callgate check` says what is wrong with a file, with line and "
        "column; `config.schema.json` in the project is the same as a JSON Schema, for editors."
    )
    shown: set[str] = set()
    yield from _table("", schema, definitions)
    queue = [(name, each) for name, each in schema["properties"].items() if name not in {"mcpServers", "servers"}]
    while queue:
        path, each = queue.pop(0)
        for name in _references(each):
            if name in shown or not definitions[name].get("properties"):
                continue
            shown.add(name)
            yield ""
            yield f"## {path}" + (f": {_kind(name)}" if len(list(_references(each))) > 1 else "")
            yield ""
            yield definitions[name].get("description", "").split("\n\n")[0]
            yield from _table(f"{path}.", definitions[name], definitions)
            queue += [(f"{path}.{field}", value) for field, value in definitions[name]["properties"].items()]


def _table(prefix: str, section: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    required = set(section.get("required", ()))
    yield ""
    yield "| setting | type | default | |"
    yield "|---|---|---|---|"
    for name, each in section["properties"].items():
        if not each or name in {"mcpServers", "servers"}:
            continue
        default = "required" if name in required else _default(each)
        text = " ".join(each.get("description", "").split()).replace("|", "\\|")
        yield f"| `{name}` | {_type(each, definitions)} | {default} | {text} |"


def _default(each: Mapping[str, Any]) -> str:
    default = each.get("default")
    return "" if default in (None, {}, []) or isinstance(default, dict) else f"`{json.dumps(default)}`"


def _type(each: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "anyOf" in each or "oneOf" in each:
        kinds = [_type(choice, definitions) for choice in each.get("anyOf") or each["oneOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind not in {"", "null"}))
    if "$ref" in each:
        name = each["$ref"].rpartition("/")[2]
        return (
            ""
            if name == "Reference"
            else ("section" if "properties" in definitions[name] else _type(definitions[name], definitions))
        )
    if "const" in each:
        return f"`{each['const']}`"
    if "enum" in each:
        words = [f"`{word}`" for word in each["enum"]]
        return ", ".join(words) if len(words) <= 8 else f"one of {len(words)} words"
    if each.get("type") == "array":
        return f"list of {_type(each.get('items', {}), definitions) or 'anything'}"
    if each.get("type") == "object" and isinstance(each.get("additionalProperties"), dict):
        return f"map of {_type(each['additionalProperties'], definitions) or 'anything'}"
    return str(each.get("type", ""))


def _references(each: Any) -> Iterator[str]:
    if isinstance(each, list):
        for value in each:
            yield from _references(value)
    elif isinstance(each, dict):
        for name, value in each.items():
            if name == "$ref":
                yield value.rpartition("/")[2]
            elif name not in {"default", "description", "discriminator"}:
                yield from _references(value)


def _kind(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
