"""What `deploy/` brings, rendered and checked without a cluster."""
