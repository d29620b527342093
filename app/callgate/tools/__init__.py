"""The tools of the config: their registry, what a request is offered, the policy around a call, results.

Read `toolbox` first. For users: `docs/tools.md`.
"""
