"""The corpus of wire quirks, and the judge that runs it: `python -m tests.corpus [DIR ...]`."""
