"""Draws the walk of a request: one row for each module in the order in which they are first entered, one column for each
package. Beside a module stand the function that is entered first and how often the walk comes there."""

from collections import Counter
from html import escape

from tests.architecture import ROOT
from tests.walk import Walk

PICTURES = {
    "plain stream": ROOT / "docs/assets/walk-stream.svg",
    "tool turn": ROOT / "docs/assets/walk-tool-turn.svg",
    "responses and MCP": ROOT / "docs/assets/walk-responses.svg",
}
ROW = 18
COLUMN = 46
LEFT = 20
TOP = 96
LABELS = 330
"""Pixels for the names of modules, at the right."""
STYLE = """
svg { background: #fff }
text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #24292f }
.package { fill: #0b57d0; font-weight: 600 }
.function { fill: #57606a }
.lane { stroke: #d0d7de }
.path { fill: none; stroke: #0b57d0; stroke-width: 1.5 }
circle { fill: #0b57d0 }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117 } text { fill: #e6edf3 } .function { fill: #8d96a0 } .lane { stroke: #30363d }
  .package { fill: #6cb6ff } .path { stroke: #6cb6ff } circle { fill: #6cb6ff }
}"""


def draw(walk: Walk) -> str:
    """Return the walk as an SVG document."""
    visits = Counter(visit.module for visit in walk.visits)
    first = {visit.module: visit.functions[0] for visit in reversed(walk.visits)}
    modules = list(dict.fromkeys(visit.module for visit in walk.visits))
    packages = list(dict.fromkeys(package_of(module) for module in modules))
    bottom = TOP + ROW * len(modules)
    labels_at = LEFT + COLUMN * len(packages)
    width = labels_at + LABELS + 260
    points = [
        (LEFT + COLUMN * packages.index(package_of(module)), TOP + ROW * row) for row, module in enumerate(modules)
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 10}" width="{width}" height="{bottom + 10}">',
        f"<title>{len(modules)} modules, {walk.crossings()} crossings</title>",
        f"<style>{STYLE}</style>",
    ]
    for place, package in enumerate(packages):
        x = LEFT + COLUMN * place
        lines.append(
            f'<text class="package" transform="translate({x} {TOP - 16}) rotate(-50)">{escape(package)}</text>'
        )
        lines.append(f'<line class="lane" x1="{x}" y1="{TOP - 10}" x2="{x}" y2="{bottom}"/>')
    lines.append(f'<polyline class="path" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
    for module, (x, y) in zip(modules, points, strict=True):
        often = f" ×{visits[module]}" if visits[module] > 1 else ""
        lines.append(f'<circle cx="{x}" cy="{y}" r="3.5"/>')
        lines.append(f'<text class="module" x="{labels_at}" y="{y + 4}">{escape(module)}{often}</text>')
        lines.append(f'<text class="function" x="{labels_at + LABELS}" y="{y + 4}">{escape(first[module])}</text>')
    return "\n".join([*lines, "</svg>\n"])


def package_of(module: str) -> str:
    return module.partition("/")[0].removesuffix(".py")
