"""Files of rows: CSV, JSON and Parquet as batches with types. Text tables are parsed in a process of their own.

`source_spec.py` names the formats. `formats.py` reads tables, and `sources/reading.py` text files;
`sources/inference.py` guesses a format by suffix.
"""
