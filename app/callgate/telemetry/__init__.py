"""What is told about the house: logs and metrics. Listeners hear of a chat what its client hears, and act on nothing."""
