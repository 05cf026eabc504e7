"""Verdicts: the contract's suite on Great Expectations, the exact SQL beside it, evidence and quarantine.

The only room that imports Great Expectations.
"""
