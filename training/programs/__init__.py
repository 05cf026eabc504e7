"""What is started as a process: `python -m headway.training.programs.worker` and its kin.

Each reads its arguments, does one thing and ends with the exit code of its error.
"""
