"""What no model, ref, run or cached stage reaches any more, and its removal.

It deletes nothing that the reachability of `reference_graph.py` does not name. A run's own old checkpoints go in
`training/checkpoint/retention.py`.
"""
