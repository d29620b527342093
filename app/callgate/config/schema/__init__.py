"""The schema of `config.yaml`: `whole` puts it together from the settings of the subjects (`settings.py` in their
packages).

Read `whole` first.
"""
