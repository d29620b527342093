"""Tools that clients declare, and that tools of the config stand for."""
