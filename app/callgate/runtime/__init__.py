"""What is built from one reading of the config, and moving from one reading to the next."""
