"""From the sections of the config to the objects of the other packages: one module for each subject.

Together with `callgate.runtime` these are the only modules that read `config.schema` and import every package; what they
build takes plain values.
"""
