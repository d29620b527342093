"""Records runs: one row for each request, its events, and its texts where the config keeps them."""
