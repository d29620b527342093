"""What the three APIs share: middleware, the endpoint, the delivery of an answer, errors.

Read `endpoint` first. For users: `docs/apis.md`.
"""
