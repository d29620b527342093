"""Callgate as a user has it: the wheel, in an environment of its own."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.harness.process import ROOT


def install_wheel(folder: Path) -> Path:
    """A fresh environment with the wheel in it, and this one's other packages. Its `bin`."""
    environment = folder / "environment"
    python = environment / "bin" / "python"
    done("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    [wheel] = folder.glob("callgate-*.whl")
    done("-m", "venv", "--without-pip", str(environment))
    done("-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


def done(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True)
