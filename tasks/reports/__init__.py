"""Pages about models, for people: the evaluation of one, and two beside each other.

What a page shows was recorded before: documents, and the files that `evidence.py` reads and writes. Style and plots are
those of `data_contracts.report`.
"""
