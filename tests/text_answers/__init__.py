"""Answers of models that write their calls as text, made of phrases, places and formats: meant calls, and calls that are only
talked about. `python -m tests.text_answers` prints what becomes of them."""
