"""Writes the reference pages anew; says which changed."""

from __future__ import annotations

from docs.reference.pages import FOLDER, pages


def main() -> None:
    for name, text in pages().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path)


if __name__ == "__main__":
    main()
