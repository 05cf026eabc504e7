"""Slurm: scripts, arrays, srun, and what its commands say. It is the only room that calls them.

Its options are declared in `training/config/launcher_specs.py`, and become sbatch's in `batch_script.py`, for single
jobs and arrays alike.
"""
