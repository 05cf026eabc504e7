"""How a command speaks: options, tables, escaping, signals, environment.

All printed text goes through here; nothing here knows what it says.
"""
