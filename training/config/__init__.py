"""Options of a pipeline file that ranks and launchers read, declared: recipe, optimizer, checkpoints, launchers.

No module here imports an engine. Options that all launchers share are in `launch/base/gang.py`.
"""
