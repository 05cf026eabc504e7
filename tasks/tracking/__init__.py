"""What MLflow writes, written without MLflow: to import it takes three CPU seconds, a tenth of a short job. Tables of
the workspace's own store, a run's samples and a model's folder, in the format of the pinned version. Tests hold every
row and byte against MLflow's own. Whatever is another store is MLflow's.
"""
