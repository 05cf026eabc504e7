"""Pages about models, for people: the evaluation of one, and two beside each other.

What a page shows was recorded before: documents, and the files that `evidence.py` reads and writes. Pictures are drawn
in `pictures.py`; `evaluation_page.py` and `comparison_page.py` place them. Style, axes and sections are those of
`data_contracts/report`: `style.py`, `plots.py` and `page.py`. A new module goes into `CODE` of `stages/evaluate.py`.
"""
