"""What is reported of a run: terminal lines, the failure card, the summary, the time account.

To show something never fails what was decided.
"""
