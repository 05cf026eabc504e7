"""The validation report: a page that a person reads, with no script and nothing of the data interpreted.

`validation_report.py` orders its sections, `columns.py` a column's card, and `distribution_picture.py` draws.
"""
