"""Models that cannot call functions, or write their calls as text: asked in a prompt, read back from text. Pure."""
