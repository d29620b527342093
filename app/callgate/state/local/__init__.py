"""State of one machine: in memory, or in SQLite files in `data_dir`.

Read `sqlite` first.
"""
