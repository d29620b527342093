"""Counts the habits of style that creep in unseen, see CONTRIBUTING.

python -m tests.style                   each package beside the goals
python -m tests.style PATH [HABIT]      every finding below a path, or those of one habit
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "app" / "callgate"

BARE_WORDS = frozenset(
    "found kept given asked known held made each one it said rest there here more done left "
    "stored sent read seen taken wanted opened".split()
)
"""Participles and pronouns that say nothing of what they name."""
CONTEXTS = frozenset({"callgate_ids", "trace", "litellm_exchange"})
"""Context variables that change what no function of ours means: they hold ids of the log and the trace, and the exchange that a
transport of litellm copies into, which no parameter of litellm's would reach."""
CHEAP = frozenset({"bool", "len", "isinstance", "get", "is_set", "locked", "min", "max", "any", "all"})
"""What a property may call: it says what is there."""
LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
ENUMS = frozenset({"Enum", "StrEnum", "Flag"})


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    line: int
    habit: str


@dataclass(frozen=True, slots=True)
class Counted:
    """How often each habit was found, and what that is compared with."""

    findings: Sequence[Finding]
    lines: int
    """Without blank ones."""
    code: int
    """Without blank lines, docstrings and comments."""
    names: int
    """Variables, parameters and fields."""

    def amounts(self) -> dict[str, float]:
        """Each habit in its own measure."""
        counts = Counter(finding.habit for finding in self.findings)
        return {habit: round(measure(counts[habit], self), 2) for habit, measure in MEASURES.items()}


def per_thousand_lines(count: int, counted: Counted) -> float:
    return count * 1000 / max(counted.lines, 1)


def per_thousand_lines_of_code(count: int, counted: Counted) -> float:
    return count * 1000 / max(counted.code, 1)


def percent_of_names(count: int, counted: Counted) -> float:
    return count * 100 / max(counted.names, 1)


def number(count: int, counted: Counted) -> float:
    return count


MEASURES: Mapping[str, Callable[[int, Counted], float]] = {
    "tuple assignment": per_thousand_lines,
    "bare name": percent_of_names,
    "conditional expression": per_thousand_lines_of_code,
    "chained conditional": number,
    "and as a value": number,
    "index by truth": number,
    "positional private field": number,
    "subclass of text": number,
    "context variable": number,
    "property that works": number,
}
GOALS: Mapping[str, float] = dict.fromkeys(MEASURES, 0.0) | {
    "tuple assignment": 1.0,
    "bare name": 0.5,
    "conditional expression": 15.0,
}


def packages() -> dict[str, list[Path]]:
    """The files of each package in `callgate`, and those beside the packages as its own."""
    files: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        files.setdefault(parts[0] if len(parts) > 1 else PACKAGE.name, []).append(path)
    return files


def count(paths: Sequence[Path]) -> Counted:
    structs = structs_of(tuple(sorted(PACKAGE.rglob("*.py"))))
    findings: list[Finding] = []
    lines = code = names = 0
    for path in paths:
        nodes = nodes_of(path)
        text = path.read_text(encoding="utf-8")
        filled = [line.strip() for line in text.splitlines() if line.strip()]
        lines += len(filled)
        code += len(filled) - sum(line.startswith("#") for line in filled) - docstring_lines(nodes)
        names += sum(name_bound_by(node) is not None for node in nodes)
        findings += [Finding(path, line, habit) for line, habit in habits_in(nodes, structs)]
    return Counted(findings, lines, code, names)


def habits_in(nodes: Iterable[ast.AST], structs: frozenset[str]) -> Iterator[tuple[int, str]]:
    for parent in nodes:
        if isinstance(parent, ast.ClassDef):
            yield from habits_of_class(parent, structs)
        elif isinstance(parent, ast.FunctionDef) and is_property(parent) and works(parent):
            yield parent.lineno, "property that works"
        for node in ast.iter_child_nodes(parent):
            line = getattr(node, "lineno", 0)
            if name_bound_by(node) in BARE_WORDS:
                yield line, "bare name"
            match node:
                case ast.Assign(targets=[ast.Tuple(), *_], value=ast.Tuple()):
                    yield line, "tuple assignment"
                case ast.IfExp():
                    yield line, "conditional expression"
                    if isinstance(parent, ast.IfExp):
                        yield line, "chained conditional"
                case ast.BoolOp(op=ast.And()) if is_value(parent) and not is_truth(node.values[-1]):
                    yield line, "and as a value"
                case ast.Subscript(slice=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not())):
                    yield line, "index by truth"
                case ast.Call(func=func, args=[ast.Constant(value=name), *_]) if name_of(func) == "ContextVar":
                    if name not in CONTEXTS:
                        yield line, "context variable"


def habits_of_class(node: ast.ClassDef, structs: frozenset[str]) -> Iterator[tuple[int, str]]:
    bases = {name_of(base) for base in node.bases}
    if bases & {"str", "bytes"} and not bases & ENUMS:
        yield node.lineno, "subclass of text"
    if bases & structs and not any(keyword.arg == "kw_only" for keyword in node.keywords):
        for field in node.body:
            match field:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if name.startswith("_"):
                    if name_of(annotation) != "ClassVar":
                        yield field.lineno, "positional private field"


@cache
def structs_of(paths: tuple[Path, ...]) -> frozenset[str]:
    """The names of `msgspec.Struct` and all that come from it."""
    bases: dict[str, set[str]] = {}
    for path in paths:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(map(name_of, node.bases))
    structs = {"Struct"}
    while more := {name for name, parents in bases.items() if parents & structs and name not in structs}:
        structs |= more
    return frozenset(structs)


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def is_property(node: ast.FunctionDef) -> bool:
    return any(name_of(decorator) in {"property", "cached_property"} for decorator in node.decorator_list)


def works(node: ast.FunctionDef) -> bool:
    """Whether it decodes, builds or counts: whether it loops, or calls what is not cheap."""
    looked_through = {
        inner
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and name_of(call.func) in {"any", "all"}
        for inner in call.args
    }
    for statement in node.body:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Call) and name_of(inner.func) not in CHEAP:
                return True
            if isinstance(inner, LOOPS) and inner not in looked_through:
                return True
    return False


def is_value(parent: ast.AST) -> bool:
    """Whether what stands in it is used, and not only asked for its truth."""
    used = ast.Assign | ast.AnnAssign | ast.keyword | ast.Call | ast.Return | ast.Dict | ast.Tuple
    return isinstance(parent, used)


def is_truth(node: ast.expr) -> bool:
    """Whether an expression is a truth value, as far as its form says; a call may be one."""
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare | ast.BoolOp | ast.Call)


def name_bound_by(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
    return None


def name_of(node: ast.expr) -> str:
    """The last part of a name, without what stands in brackets behind it."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
    return ""


def docstring_lines(nodes: Iterable[ast.AST]) -> int:
    documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
    total = 0
    for node in nodes:
        if isinstance(node, documented):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)), *_]:
                    total += last - first + 1
    return total


# As a command ---------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case []:
            print_packages()
        case [path, *habits]:
            print_findings(Path(path).resolve(), habits)
    return 0


def print_packages() -> None:
    width = max(map(len, packages()))
    for package, paths in packages().items():
        above = {habit: amount for habit, amount in count(paths).amounts().items() if amount > GOALS[habit]}
        say(f"{package:{width}} " + (", ".join(f"{habit} {amount:g}" for habit, amount in above.items()) or "done"))


def print_findings(path: Path, habits: Sequence[str]) -> None:
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    for finding in sorted(count(files).findings, key=lambda finding: (finding.path, finding.line)):
        if not habits or finding.habit in habits:
            line = finding.path.read_text(encoding="utf-8").splitlines()[finding.line - 1].strip()
            say(f"{finding.path.relative_to(ROOT)}:{finding.line}: {finding.habit}: {line}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
