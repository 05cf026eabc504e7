"""The validation report: a page that a person reads, with no script and nothing of the data interpreted.

`validation_report.py` orders its sections. `column_cards.py` fills a column's card, `columns.py` lays it out, and
`distribution_picture.py` draws. `plots.py` has axes for other pages.
"""
