"""The door for bytes that others wrote: counts them before any decoder reads them.

What comes from a socket, a file, a queue or a child process goes inward as `Untrusted`, and the readers of this package take
what it opens to.

Read `doors` first. The same for MessagePack is `messagepack`. For users: `docs/security.md`.
"""
