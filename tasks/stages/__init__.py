"""The seven stages, a file each, and what only they share.

A stage fills and publishes a document, such as the evaluation's in `evaluate.py`, and returns its link. Fields are
declared in `data_contracts/store/documents.py`.
"""
