"""What the site has besides the pages of this folder: the reference of the configuration, and pages of the project's root."""

import json
import os
import re
import subprocess
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
REFERENCE = "configuration.md"
"""The page that every setting is added to."""
OWN_PAGES = frozenset({"index.md", REFERENCE})
"""Pages that are no copy of that file."""
NOT_SEARCHED = ("decisions/", "changelog.md", "contributing.md", "architecture.md")
"""Pages for who changes the code, which would stand before those for who uses it."""
EDIT_ADDRESS = "CALLGATE_DOCS_EDIT"
"""A variable with the address under which a file of the project can be edited; else it is the forge that it was cloned from."""
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The version stands at the top and at the foot of each page."""
    found = re.search(r'^__version__ = "(.+)"', (ROOT / "app/callgate/__init__.py").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise PluginError("app/callgate/__init__.py has no version")
    config.site_name = f"{config.site_name} {found[1]}"
    commit = _asked_of_git("rev-parse", "--short=8", "HEAD")
    config.copyright = f"{config.site_name}{f', commit {commit}' if commit else ''}. MIT licence."
    config.extra["edit"] = edit_address(_asked_of_git("remote", "get-url", "origin"))
    return config


def edit_address(remote: str) -> str:
    """Return the address to which the path of a file is added; empty where nobody knows it."""
    given = os.environ.get(EDIT_ADDRESS, "")
    if given:
        return given.rstrip("/") + "/"
    forge = re.fullmatch(r"(?:https://|git@|ssh://git@)(?:[^@/]*@)?([\w.-]+)[/:](.+?)(?:\.git)?/?", remote)
    if forge is None:
        return ""
    between = "-/edit" if forge[1].startswith("gitlab") else "edit"
    return f"https://{forge[1]}/{forge[2]}/{between}/main/"


def _asked_of_git(*words: str) -> str:
    try:
        asked = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603, S607
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def on_files(files: Files, config: MkDocsConfig) -> Files:
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
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    if config.extra["edit"] and here.exists():
        page.edit_url = config.extra["edit"] + here.relative_to(ROOT).as_posix()
    depth = page.file.src_uri.count("/")
    if page.file.src_uri == REFERENCE:
        markdown = "\n".join((markdown, *_reference()))

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
    yield ""
    yield "## All settings"
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
        text = " ".join(_set(each).get("description", "").split()).replace("|", "\\|")
        yield f"| `{name}` | {_type(each, definitions)} | {default} | {text} |"


def _set(each: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value that may also be left empty."""
    choices = [choice for choice in each.get("anyOf", ()) if choice != {"type": "null"}]
    return (
        {**choices[0], **{name: value for name, value in each.items() if name != "anyOf"}}
        if len(choices) == 1
        else each
    )


def _default(each: Mapping[str, Any]) -> str:
    default = _set(each).get("default")
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
