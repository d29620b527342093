"""State that several machines share: Postgres for what must not be lost, Redis for what may expire.

Read `postgres` first.
"""
