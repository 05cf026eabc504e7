"""Column types and values as text: what a type is called, what fits it, how YAML is read strictly.

It reads no data.
"""
