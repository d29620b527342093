"""`python -m tests.cli.modules_at_the_end serve ...`: the command, and at its end the modules that were loaded."""

import atexit
import sys

from callgate.__main__ import main

atexit.register(lambda: sys.stdout.write(" ".join(["loaded:", *sorted(sys.modules)]) + "\n"))
main()
