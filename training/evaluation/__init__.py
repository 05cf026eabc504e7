"""What a checkpoint is worth: metrics, baselines, statistics. The same bits on any number of ranks.

`measures.py` names the metrics as ratios of sums. The sums come from recipes (`recipes/protocol.py`), `scorers.py` and
every baseline: `baselines.py`, `linear_model.py` and `boosted_trees.py`. What is no ratio of sums, such as areas,
calibration and quantiles, is in `class_figures.py` and `number_figures.py`, with its fields in
`data_contracts/store/documents.py`.
"""
