"""`callgate worker`: the process that runs calls for proxies. The only package that imports celery.

Read `run` first. For users: `docs/scaling.md`.
"""
