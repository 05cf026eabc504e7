"""Reference pages, made from the code: `python -m docs.reference` writes them, and a test keeps them fresh."""
