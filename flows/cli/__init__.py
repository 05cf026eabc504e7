"""The command line: one module a panel of `headway --help`, or a large command; `command_line.py` puts them together.

A command reads its options, asks a module below for the work, and shows what comes back. It decides nothing itself. A
panel's module has its name, such as `look.py`; large commands have modules of their own, such as `ci.py`. Options that
several commands share are in `flows/console/options.py`. What a retrain is asked with is a field of
`flows/config/request.py`, and an argument of `flows/python_api.py`, too.
"""
