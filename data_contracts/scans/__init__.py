"""SQL over rows in DuckDB: counts, figures, distributions, duplicates, leaks.

A scan measures; it gives no verdict.
"""
