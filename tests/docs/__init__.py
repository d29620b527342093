"""The documentation: its site builds, what it shows works, and it says nothing that is no longer so."""
