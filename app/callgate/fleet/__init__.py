"""The client side of workers: has tools run on other machines through Redis."""
