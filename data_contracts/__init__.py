"""Files and what must hold of them: sources, contracts, validation, and the store in which every document lies.

Great Expectations is known in this package alone.
"""
