"""What has to outlive a request: one small protocol, and the places it can be kept in."""
