"""What a checkpoint is worth: measures, baselines, statistics.

The same bits on any number of ranks.
"""
