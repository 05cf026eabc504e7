"""What every stage needs: the context of a run, `find_or_make`, retries, the code version, the gang that a stage
starts. No stage is known here.
"""
