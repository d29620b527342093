"""Builds the objects of the other packages from the sections of the config: one module for each subject.

Only these modules and `callgate.runtime` read `config.schema` and import every package; what they build takes plain values.
"""
