"""A listing has every wanted file once, in one order, whatever links and names there are."""

from __future__ import annotations

import os
import socket
import unicodedata
import uuid
from pathlib import Path

import fsspec
import pytest
from botocore.exceptions import NoCredentialsError

from headway.data_contracts.sources.listing import list_local, list_remote
from headway.data_contracts.store.errors import ConfigError, DataError, EnvironmentProblem
from headway.data_contracts.tables.source_errors import reading_remote


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def names(
    root: Path, include: tuple[str, ...] = ("**/*",), exclude: tuple[str, ...] = (), *, follow_links: bool = False
) -> list[str]:
    return [name for name, _ in list_local(root, include, exclude, follow_links=follow_links)]


def test_files_come_in_code_point_order(tmp_path: Path) -> None:
    write(tmp_path, "b/a", "a.py", "a/b", "B", "é", "a-b")
    assert names(tmp_path) == sorted(["b/a", "a.py", "a/b", "B", "é", "a-b"])


def test_an_excluded_folder_is_not_even_opened(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "out/b.py")
    (tmp_path / "out" / "broken").symlink_to("nowhere")
    assert names(tmp_path, exclude=("out/**",)) == ["a.py"]


def test_names_that_differ_in_case_or_unicode_form_are_different_files(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "é.py") for form in ("NFC", "NFD"))
    write(tmp_path, "A.py", "a.py", composed, decomposed)
    assert len(names(tmp_path)) == 4


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    write(tmp_path, "a/x.py")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "over").symlink_to(tmp_path / "a")
    assert names(tmp_path) == ["a/x.py"]


def test_a_linked_folder_outside_is_read_once(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root, "a.py")
    write(outside, "x.py")
    (root / "z1").symlink_to(outside)
    (root / "z2").symlink_to(outside)
    assert names(root, follow_links=True) == ["a.py", "z1/x.py"]


def test_a_linked_file_counts_as_that_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(tmp_path, "far.py", "root/a.py")
    (root / "b.py").symlink_to(tmp_path / "far.py")
    assert names(root, follow_links=True) == ["a.py", "b.py"]


@pytest.mark.parametrize("target", ["../outside", "../outside/x.py", "/", "../root-beside", "in/../../outside/x.py"])
def test_a_link_that_leads_out_is_refused_by_name(tmp_path: Path, target: str) -> None:
    write(tmp_path, "outside/x.py", "root-beside/x.py", "root/a.py", "root/in/b.py")
    (tmp_path / "root" / "in" / "l.py").symlink_to(tmp_path / "root" / target if target != "/" else target)
    with pytest.raises(DataError, match=r"root/in/l\.py: the link leads out .*`source\.follow_links: true`"):
        names(tmp_path / "root")
    assert names(tmp_path / "root", exclude=("in/l.py",)) == ["a.py", "in/b.py"]
    assert names(tmp_path / "root", ("*.py",)) == ["a.py"]


def test_a_link_through_a_folder_within_cannot_lead_out_either(tmp_path: Path) -> None:
    write(tmp_path, "outside/x.py", "root/a.py")
    (tmp_path / "root" / "deep").mkdir()
    (tmp_path / "root" / "deep" / "step").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "b.py").symlink_to("deep/step/x.py")
    with pytest.raises(DataError, match="the link leads out"):
        names(tmp_path / "root", exclude=("deep/**",))


def test_links_within_and_a_folder_that_is_itself_a_link_are_followed(tmp_path: Path) -> None:
    write(tmp_path, "real/a/x.py", "real/b.py")
    (tmp_path / "real" / "absolute.py").symlink_to(tmp_path / "real" / "b.py")
    (tmp_path / "real" / "relative.py").symlink_to("a/x.py")
    (tmp_path / "root").symlink_to("real")
    assert names(tmp_path / "root") == ["a/x.py", "absolute.py", "b.py", "relative.py"]


@pytest.mark.parametrize("target", ["nowhere", "b.py"])
def test_a_wanted_link_that_leads_nowhere_is_named(tmp_path: Path, target: str) -> None:
    write(tmp_path, "a.py")
    (tmp_path / "b.py").symlink_to(target)
    with pytest.raises(DataError, match=r"b\.py: cannot be read .*source\.exclude"):
        names(tmp_path)
    assert names(tmp_path, exclude=("b.py",)) == ["a.py"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a device", "link to a pipe"])
def test_what_is_no_regular_file_is_refused_instead_of_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.py"
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(str(path))
        elif kind == "link to a device":
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to("pipe")
        for follow_links in (False, True):
            with pytest.raises(DataError, match=r"a\.py: is not a regular file.*source\.exclude"):
                names(tmp_path, ("*.py",), follow_links=follow_links)


def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text("")
    with pytest.raises(DataError, match="not UTF-8") as caught:
        names(tmp_path)
    caught.value.where.encode()


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "file")
    with pytest.raises(DataError, match=f"{kind}: there is no such folder"):
        names(tmp_path / kind)


def test_a_remote_listing_has_the_same_names() -> None:
    root = f"memory://{uuid.uuid4().hex}/deep"
    fs = fsspec.filesystem("memory")
    for name in ("b/a.py", "a.py", "a.txt", "out/c.py"):
        fs.pipe_file(f"{root}/{name}", name.encode())
    wanted = [("a.py", 4), ("b/a.py", 6)]
    for uri in (root, f"{root}/"):
        found = list_remote(uri, ("**/*.py",), ("out/**",))
        assert [(file.path, file.size_bytes) for file in found] == wanted


def test_a_link_in_a_store_that_says_so_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "far.py", "root/a.py")
    (tmp_path / "root" / "b.py").symlink_to(tmp_path / "far.py")
    root = f"local://{tmp_path}/root"
    with pytest.raises(DataError, match=r"b\.py: the link leads out"):
        list_remote(root, ("**/*",), ())
    assert [file.path for file in list_remote(root, ("**/*",), (), follow_links=True)] == ["a.py", "b.py"]


def test_an_unknown_protocol_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match="no file system for this URI"):
        list_remote("gopher2://host/data", ("**/*",), ())


@pytest.mark.parametrize("uri", ["ftp://127.0.0.1:1/data", "http://127.0.0.1:1/data/", "http://127.0.0.1:1/a.csv"])
def test_a_server_that_does_not_answer_is_no_empty_source(uri: str) -> None:
    with pytest.raises(EnvironmentProblem, match="its server does not answer"):
        list_remote(uri, ("**/*",), ())


def test_a_store_that_wants_credentials_is_said_where_they_come_from() -> None:
    with pytest.raises(DataError, match=r"NoCredentialsError.*AWS_PROFILE"), reading_remote("s3://bucket/data"):
        raise NoCredentialsError
