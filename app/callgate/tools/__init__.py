"""What can be run, and the running of it."""
