"""Great Expectations suites of others: each kind of expectation with pandas' meaning, by SQL of our own.

What cannot be the same is refused by name.
"""
