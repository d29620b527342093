"""The HTTP clients with which models and tools are asked. They know neither."""
