"""Tools that run on workers, as a process sees it that wants them run."""
