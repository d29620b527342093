"""The configuration: its schema (`schema`), and reading it (`load`). Imports nothing of ours."""
