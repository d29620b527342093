"""The litellm lane: litellm makes and sends the request, and a tap on its transport sees the answer.

Read `model` first.
"""
