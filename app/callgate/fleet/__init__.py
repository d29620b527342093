"""The client side of workers: runs tools on other machines through Redis."""
