"""The command line: one module for each group of commands. `callgate.__main__` registers them."""
