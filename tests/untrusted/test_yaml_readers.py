"""Documents that are small and grow, or that are deep, are refused before anything builds them."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from callgate.untrusted.yaml_readers import MAX_DEPTH, OversizedText, SizeLimit
from tests.harness.process import ROOT, child_environment

MEMORY = 1024 * 1024 * 1024
SMALL = SizeLimit(nodes=1000, chars=10_000)


def bomb(levels: int) -> str:
    """Each level stands for ten of the one below."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, levels)]
    return "\n".join(lines)


TERM = "{type: object, properties: {q: {type: string, enum: *a9}}}"
PATH = f"paths: {{/x: {{post: {{requestBody: {{content: {{application/json: {{schema: {TERM}}}}}}}}}}}}}"
ATTACKS = {
    "aliases": f"openapi: 3.1.0\n{bomb(10)}\n{PATH}\n",
    "brackets": "[" * 100_000,
    "brackets in a value": "openapi: 3.1.0\nx: " + "[" * 50_000,
    "a block that is deep": "\n".join(" " * at + "a:" for at in range(2_000)),
    "aliases of a long text": "openapi: 3.1.0\nx: &x " + "t" * 1_000_000 + "\ny: [" + "*x, " * 1000 + "*x]",
    "a long list": "openapi: 3.1.0\nx: [" + "1," * 2_000_000 + "1]",
    "JSON that is deep": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "JSON of brackets": '{"a":' + "[" * 100_000,
    "JSON with many values": '{"openapi": "3.1.0", "x": [' + "{}," * 2_000_000 + "{}]}",
    "an alias of itself": "openapi: 3.1.0\nx: &x [*x]",
    "a number in sixties": "openapi: 3.1.0\nx: " + ":".join(["59"] * 500_000),
    "a float in sixties": "openapi: 3.1.0\nx: !!float " + ":".join(["59"] * 200) + ".5",
    "a number by its tag": "openapi: 3.1.0\nx: !!int '" + ":".join(["59"] * 500_000) + "'",
    "a number of many digits": "openapi: 3.1.0\nx: " + "9" * 1_000_000,
}
OF_AN_API = {
    "many operations": "openapi: 3.1.0\npaths:\n" + "".join(f"  /p{at}: {{get: {{}}}}\n" for at in range(20_001)),
}
"""What is no attack where operations are not read."""
READ = ("openapi", "config", "mcp_config", "editors")
PROGRAM = """
import sys
from pathlib import Path
from callgate.cli.found import read_servers
from callgate.config.load import load
from callgate.config.problems import ConfigError
from callgate.tools.kinds.openapi.source import Api, OpenApiSource

folder, reader, *attacks = sys.argv[1:]
for attack in attacks:
    file = Path(folder, "document.json" if reader == "mcp_config" or attack.startswith("JSON") else "document.yaml")
    file.write_text(Path(folder, attack).read_text())
    try:
        match reader:
            case "openapi":
                OpenApiSource("x", Api(), str(file))
            case "config":
                load(file, environ={})
            case "mcp_config":
                load(Path(folder, "config.yaml"), environ={})
            case "editors":
                read_servers("x", file, Path(folder))
    except (ValueError, ConfigError):
        print(f"{attack}: refused", flush=True)
    else:
        print(f"{attack}: taken", flush=True)
"""


@pytest.mark.parametrize("reader", READ)
def test_documents_that_would_end_the_process_are_refused_with_a_word(tmp_path: Path, reader: str) -> None:
    (tmp_path / "config.yaml").write_text("model_list: []\nmcp_config: document.json\n")
    attacks = ATTACKS | OF_AN_API if reader == "openapi" else ATTACKS
    for attack, text in attacks.items():
        (tmp_path / attack).write_text(text)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), reader, *attacks],
        cwd=ROOT,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    verdicts = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    assert verdicts == dict.fromkeys(attacks, "refused")


@pytest.mark.parametrize(
    ("text", "why", "line"),
    [
        (bomb(4), "more than 1000 values", 3),
        ("a: &a [*a]", "no end", 1),
        ("\n".join(" " * at + "a:" for at in range(MAX_DEPTH + 1)), "deeper", MAX_DEPTH + 1),
        ("x: &x " + "t" * 5000 + "\ny: [*x, *x]", "more than 10000 characters", 2),
    ],
)
def test_what_is_too_much_says_where(text: str, why: str, line: int) -> None:
    with pytest.raises(OversizedText, match=why) as refused:
        SMALL.open_yaml(text)
    assert refused.value.line == line


def test_an_alias_counts_as_much_as_what_it_stands_for() -> None:
    with_aliases = "a: &a {b: [1, 2, {c: d}]}\nx: *a\ny: [*a, *a]"
    written_out = yaml.safe_dump(yaml.safe_load(with_aliases), default_flow_style=True).replace("&id001 ", "")
    assert "*" in written_out
    loaded = yaml.safe_load(with_aliases)
    nodes = sum(1 for _ in every_node(loaded))
    SizeLimit(nodes, 1000).open_yaml(with_aliases)
    with pytest.raises(OversizedText):
        SizeLimit(nodes - 1, 1000).open_yaml(with_aliases)


def every_node(value: object) -> list[object]:
    if isinstance(value, dict):
        return [value, *(node for key, inner in value.items() for node in [key, *every_node(inner)])]
    return [value, *(node for inner in value for node in every_node(inner))] if isinstance(value, list) else [value]


@pytest.mark.parametrize("text", ["x: '" + "5" * 5000 + "'", "x: " + "5a" * 2500, "x: " + ":".join(["5"] * 100)])
def test_a_long_text_of_digits_and_a_short_number_are_taken(text: str) -> None:
    SMALL.open_yaml(text)


def test_brackets_within_strings_are_no_depth() -> None:
    SMALL.open_json('{"a": "' + "[" * 5000 + '", "b": "\\"' + "{" * 5000 + '"}')
    SMALL.open_yaml("a: '" + "[" * 5000 + "'")
