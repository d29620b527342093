"""JSON Schemas of tools in the dialect that each provider takes."""
