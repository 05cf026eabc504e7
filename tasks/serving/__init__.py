"""Registered models, asked: rows and texts as people have them, and MLflow's server behind a password."""
