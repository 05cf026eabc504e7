"""Retraining windows: when they open, what overrides and holds them, and who may enter.

Times are a function of the pipeline file, the overrides on record and a given moment. Kinds of windows are declared in
`flows/config/windows.py`.
"""
