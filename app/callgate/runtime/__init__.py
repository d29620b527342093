"""The runtime: all objects built from one reading of the config, and the move to the next on a reload."""
