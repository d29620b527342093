"""Builds the objects of the other packages from the sections of the config: one module for each subject.

Together with `callgate.runtime` these are the only modules that read `config.schema` and import every package; what they
build takes plain values.
"""
