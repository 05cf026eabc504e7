"""Where a source lies: a folder, a URI, or files that an installed package brings along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.sources.locations import file_place, resolve_base_uri
from headway.data_contracts.sources.reading import SourceSpec, take_snapshot
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.data_contracts.tables.digest_cache import DigestCache


def place(uri: str) -> str:
    return resolve_base_uri(SourceSpec(uri=uri), base=Path("/base"))


@pytest.mark.process
def test_a_folder_of_an_installed_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bringsdata"
    (package / "datasets" / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "datasets" / "data" / "digits.csv").write_text("0,1\n2,3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert place("python:bringsdata/datasets/data") == str(package / "datasets" / "data")
    assert place("python:bringsdata/") == place("python:bringsdata") == str(package)
    spec = SourceSpec(
        format="csv", uri="python:bringsdata/datasets/data", include=("digits.csv",), csv={"has_header": False}
    )
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "ws" / "digests"))
    assert (snapshot.num_rows, snapshot.columns) == (2, {"f0": "int64", "f1": "int64"})


@pytest.mark.process
def test_scikit_learns_digits_are_a_source(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    spec = SourceSpec(
        format="csv", uri="python:sklearn/datasets/data", include=("digits.csv.gz",), csv={"has_header": False}
    )
    snapshot = take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "ws" / "digests"))
    assert (snapshot.num_rows, len(snapshot.columns)) == (1797, 65)


@pytest.mark.parametrize("uri", ["circle", "circle/data", "~no-such-user/data", "file:///{base}/circle"])
def test_a_place_that_leads_nowhere_is_no_folder(tmp_path: Path, uri: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    spec = SourceSpec(uri=uri.format(base=tmp_path))
    with pytest.raises(DataError, match="there is no such folder"):
        take_snapshot(spec, base=tmp_path, cache=DigestCache(tmp_path / "digests"))


@pytest.mark.parametrize(
    "uri", ["python:stdlb", "python:", "python:no_such_package/data", "python:os.path", "python:json.x"]
)
def test_an_unknown_package_is_a_mistake_that_shows_a_way_out(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"no such installed package\. (Did you mean|Is it installed)"):
        place(uri)


@pytest.mark.parametrize(("asked", "meant"), [("sklaern", "sklearn"), ("jsn/data", "json"), ("stdlb", "stdlib")])
def test_of_a_misspelt_package_the_one_that_is_meant_is_named(asked: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean 'python:{meant}'"):
        place(f"python:{asked}")


def test_a_package_is_no_way_to_other_folders() -> None:
    with pytest.raises(IntegrityError, match="leaves the workspace"):
        place("python:json/../../etc")


@pytest.mark.parametrize("uri", ["https://user:pass@host/data", "s3://bucket/data?X-Amz-Signature=abc"])
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ConfigError, match="must not hold credentials") as refused:
        resolve_base_uri(SourceSpec(uri=uri), base=Path())
    assert "pass" not in str(refused.value).replace("credentials", "") and "abc" not in str(refused.value)


def test_a_file_never_lies_outside_its_source() -> None:
    assert file_place("s3://bucket/data/", "a/b") == "s3://bucket/data/a/b"
    with pytest.raises(IntegrityError):
        file_place("/data", "../secret")


@pytest.mark.process
def test_asking_where_a_package_lies_imports_little() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from headway.data_contracts.sources.locations import resolve_base_uri\n"
        "from headway.data_contracts.tables.source_spec import SourceSpec\n"
        "resolve_base_uri(SourceSpec(uri='python:pyarrow/include'), base=Path('/'))\n"
        "print({'pyarrow', 'pandas', 'duckdb', 'numpy'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
