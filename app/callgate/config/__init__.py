"""The configuration: its schema (`schema`), and reading it (`load`). Imports no other package of Callgate."""
