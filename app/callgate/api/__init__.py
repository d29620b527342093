"""The HTTP face. Knows no provider and no tool."""
