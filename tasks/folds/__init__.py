"""Cross-validation: a model for each fold of the rows, trained on the others and scored on it.

Each is a run of its own, through the stages of any run. `tasks/rows/fold_scores.py` declares what they come to, and
`tasks/stages/evaluate.py` reads it.
"""
