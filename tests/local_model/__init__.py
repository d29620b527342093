"""A real language model behind a real server, small enough for a test: SmolLM2 with 135 million parameters in llama.cpp.

It covers what no script does: a template of its own, real token chunks, tools that are ignored with status 200, text that
runs on to the length limit, JSON that a grammar enforces. What it says is nonsense, so only protocol and shape are tested.

The packages (`requirements.txt`, with hashes) live in an environment of their own under `.cache/local-model`. The weights
declare dependencies that would be compiled for minutes and are never used, so none of their wishes is followed.
"""
