"""Glob patterns mean what people expect of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.data_contracts.store.globs import compile_glob, folder_filter, path_filter

PATHS = st.lists(st.text("ab.[*?", min_size=1, max_size=4), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("**/*.py", "a.pyc", False),
        ("*.py", "a/b.py", False),
        ("a/*/c.py", "a/b/c.py", True),
        ("a/*/c.py", "a/b/b/c.py", False),
        ("a/**/c.py", "a/c.py", True),
        ("a/**/c.py", "a/b/b/c.py", True),
        ("site-packages/**", "site-packages/a/b.py", True),
        ("site-packages/**", "my-site-packages/a.py", False),
        ("**/__pycache__/**", "__pycache__/a.pyc", True),
        ("**/__pycache__/**", "a/__pycache__/b.pyc", True),
        ("a?.py", "ab.py", True),
        ("a?b", "a/b", False),
        ("[a-c].py", "b.py", True),
        ("[!a-c].py", "b.py", False),
        ("[!a].py", "/.py", False),
        ("a+(b).py", "a+(b).py", True),
        ("a[.py", "a[.py", True),
        ("*", "line\nfeed", True),
    ],
)
def test_a_pattern_matches_whole_paths(pattern: str, path: str, matches: bool) -> None:
    assert bool(compile_glob(pattern).fullmatch(path)) is matches


@given(PATHS)
def test_two_stars_match_everything(path: str) -> None:
    assert path_filter(["**/*"], [])(path)


@given(PATHS, st.text("ab*?[]!-/.", min_size=1, max_size=8))
@example("?", "[!]")
@example("a", "[b-a]")
@example("a", "[!b-a]")
def test_any_text_is_a_pattern(path: str, pattern: str) -> None:
    path_filter([pattern], [])(path)


@given(PATHS, PATHS, st.sampled_from(["a/**", "**/b/**", "*/**", "a.*/**"]))
def test_a_closed_folder_holds_no_wanted_file(folder: str, below: str, pattern: str) -> None:
    if not folder_filter(["**/*"], [pattern])(folder):
        assert not path_filter(["**/*"], [pattern])(f"{folder}/{below}")


@given(PATHS, PATHS, st.lists(st.sampled_from(["a", "b", "*", "?", "**", "a**", "**b", "[a/b]", "[!a]"]), min_size=1))
def test_a_folder_in_which_nothing_can_match_holds_no_wanted_file(folder: str, below: str, parts: list[str]) -> None:
    pattern = "/".join(parts)
    if path_filter([pattern], [])(f"{folder}/{below}"):
        assert folder_filter([pattern], [])(folder)


def test_a_folder_beside_the_wanted_one_stays_closed() -> None:
    assert not folder_filter(["data/*.csv"], [])("other")
    assert not folder_filter(["a.csv"], [])("data")
    assert folder_filter(["data/*/*.csv"], [])("data/1")


def test_exclusion_wins_over_inclusion() -> None:
    wanted = path_filter(["**/*.py", "a.txt"], ["b/**"])
    assert [path for path in ("a.py", "a.txt", "b/a.py", "c.txt") if wanted(path)] == ["a.py", "a.txt"]
