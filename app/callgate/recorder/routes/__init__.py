"""The routes of recorded runs: `/v1/runs`, replay, feed and usage."""
