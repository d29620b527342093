"""`make audit`: no secret stands in the repository, and no locked package has a known vulnerability.

The first needs nothing. The second asks pip-audit, which asks a service on the internet: where that cannot be reached it is
skipped, and the last line says so. Exit code 1 where something was found.
"""

import argparse
import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

LOCKS = ("requirements.lock", "requirements-build.lock", "requirements-dev.lock")
PIP_AUDIT = (sys.executable, "-m", "uv", "tool", "run", "--quiet", "pip-audit")
PATIENCE = 300.0
"""Seconds for one lock: some hundred packages, each asked for by itself."""

IGNORED: dict[str, str] = {}
"""Vulnerabilities that do not reach us, by their id, each with its reason."""

SECRETS = (
    re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{120,}"),
    re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    re.compile(r"AIza[A-Za-z0-9_-]{35}"),
    re.compile(r"(?<![A-Za-z0-9])(?:sk|rk|pk|gsk|xai|cg)-[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|hf_|npm_|pypi-|xox[abprs]-)[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{20,}\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
)
MADE_UP = frozenset(
    {"1a5d44a2dca1", "03aafb028d53", "6bffd991d6a3", "8a8feef882d9", "96ed09562b5b", "a0dabf2af773", "d49debbdd92a"}
)
"""Keys that tests and benches made up, by the beginning of their SHA-256."""
RANDOM_BITS = 3.7
"""Bits a character. Random keys have more than four; `sk-this-is-not-a-key-at-all`, as tests write, has less."""
SHORT = 20
RANDOM_BITS_OF_SHORT = 3.2
"""So many characters cannot have as much."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--pip-audit", type=shlex.split, default=PIP_AUDIT, help="the command to ask with")
    given = parser.parse_args(arguments)
    found = list(secrets_in(given.folder))
    for place in found:
        print(f"secret: {place}")
    print(f"secrets: {len(found) or 'none'} in the files of the repository")
    vulnerable, skipped = False, []
    for lock in LOCKS:
        if (given.folder / lock).exists():
            lines, reason = vulnerabilities(given.pip_audit, given.folder / lock)
            for line in lines:
                print(f"vulnerable: {lock}: {line}")
            vulnerable |= bool(lines)
            if reason:
                skipped.append(f"{lock} ({reason})")
            else:
                print(f"{lock}: {len(lines) or 'no'} known vulnerabilities")
    if skipped:
        print(f"SKIPPED, known vulnerabilities were NOT looked up: {'; '.join(skipped)}")
    return 1 if found or vulnerable else 0


def secrets_in(folder: Path) -> Iterator[str]:
    """Where something stands that looks like a key and is as random as one. Never the thing itself."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, check=False, capture_output=True, text=True)
    if listed.returncode:
        raise SystemExit(
            f"git ls-files: {listed.stderr.strip()}\nThe files of the repository are those that git names: this has to be a clone."
        )
    for name in filter(None, listed.stdout.split("\0")):
        path = folder / name
        if path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for pattern in SECRETS:
            for match in pattern.finditer(text):
                if is_random(match[0]) and digest(match[0]) not in MADE_UP:
                    yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0][:6]}… ({digest(match[0])})"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_random(text: str) -> bool:
    """By Shannon's entropy of the characters behind the prefix; short texts cannot have as much of it."""
    text = re.split(r"[-_]", text, maxsplit=1)[-1] if re.match(r"[A-Za-z]{2,6}[-_]", text) else text
    counts = Counter(text).values()
    bits = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return bits >= (RANDOM_BITS if len(text) > SHORT else RANDOM_BITS_OF_SHORT)


def vulnerabilities(pip_audit: Sequence[str], lock: Path) -> tuple[list[str], str]:
    """What is known against the packages of a lock, and why that could not be found out, if so."""
    options = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json")
    try:
        asked = subprocess.run(
            [*pip_audit, *options, "--requirement", str(lock)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        packages = json.loads(asked.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"{type(error).__name__}: {error}"
    except (ValueError, KeyError):
        return [], " ".join((asked.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1].split())[:160]
    lines = [
        f"{package['name']} {package['version']}: {each['id']}"
        for package in packages
        for each in package.get("vulns", ())
        if not IGNORED.keys() & {each["id"], *each.get("aliases", ())}
    ]
    unknown = sum("skip_reason" in package for package in packages)
    return lines, f"{unknown} of {len(packages)} packages are not known to the service" if unknown else ""


if __name__ == "__main__":
    sys.exit(main())
