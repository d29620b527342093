"""Who asks and what each may, as values: callers, their limits, the check of web pages, the places of running requests. Pure.

Read `rights` first. A server without keys has these alone.
"""
