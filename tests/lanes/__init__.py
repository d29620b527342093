"""Every native case of the corpus through every provider: `python -m tests.lanes`."""
