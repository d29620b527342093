"""The command line: one module for each group of commands. `app.__main__` puts them together."""
