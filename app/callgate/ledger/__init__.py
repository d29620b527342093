"""What was run: written down before it runs, so that after any end of the process it is known what may have happened."""
