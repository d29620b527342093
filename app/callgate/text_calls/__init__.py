"""Tool calls written as text: prompts for models without native function calling, and readers of their answers.
Pure."""
