"""Files of rows: CSV, JSON and Parquet as batches with types. Text tables are parsed in a process of their own.

`source_spec.py` names the formats. `formats.py` parses text tables, and `unparsable_rows.py` finds their broken rows.
`sources/snapshots.py` finds columns and counts rows, and `sources/reading.py` reads all formats as Parquet or text.
`sources/inference.py` guesses a format by suffix, and `tasks/serving/source_file.py` reads it for predictions.
"""
