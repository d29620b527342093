"""What is recorded of a run, as values, and the ports of who records it. Without a recorder nothing is recorded.

Read `ports` first.
"""
