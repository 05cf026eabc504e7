"""The command line: one module a panel of `headway --help`, or a large command; `command_line.py` puts them together.

A command reads its options, asks a module below for the work, and shows what comes back; it decides nothing. Modules
are named after panels: `retrain.py`. Options of several commands are in `flows/console`. What a retrain is asked with
is a field of `flows/config/request.py`, too, an argument of `flows/python_api.py`, and reaches stages by
`flows/run/session.py`.
"""
