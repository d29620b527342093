"""Reads `config.yaml`: places, references, mistakes with their lines, and the schema of the whole file.

Read `load` first. For users: `docs/operating.md`.
"""
