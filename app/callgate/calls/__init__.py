"""One call of a tool: its fragments, the gate that lets it through or says why not, its outcome. Pure: no I/O, and it
imports nothing of ours but the door for foreign bytes.

Read `states` first.
"""
