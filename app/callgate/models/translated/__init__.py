"""The translated lane: one module for each wire that is not Chat Completions.

Read `model` first.
"""
