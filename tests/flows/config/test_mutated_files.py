"""Pipeline files, contracts and profiles, altered in many ways: each loads, or is refused with where and why."""

from __future__ import annotations

import copy
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.data_contracts.rules.contract import load_contract
from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.config.profiles import load_profile

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).resolve().parents[3]
CONTRACTS = REPOSITORY / "data_contracts" / "contracts"
DEPLOYMENTS = REPOSITORY / "deployments"
NUM_MUTATIONS = 600
MAX_S = 3.0
"""Of one file: a bomb takes a minute."""
MAX_GROWTH_BYTES = 300 << 20

Load = Callable[[Path], object]

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k: 1, l: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join(['*' + before] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
SCALARS = (
    *("", "null", "~", "true", "false", "no", ".inf", "-.inf", ".nan", "-0.0", "1e400", "1e-400", "-1", "0", "1.5"),
    *("9" * 20_000, "9" * 30, str(2**53 + 1), "0x" + "f" * 5_000, "1:2:3:4:5", "'" + "9" * 5_000 + "'", "2026-02-30"),
    *("[]", "{}", "[1, 2]", "{a: 1}", "[[[[]]]]", "'{0..9999999999}'", "pixel_{0..}", "'['", "'\\udc80'", '"\\ud800"'),
    *("!!binary x", "!!int x", "!!float ''", "!!bool 7", "!!timestamp x", "!!set {a}", "!!omap [a: 1]", "!!pairs [a]"),
    *("!!python/object:os.system x", "!x y", "*none", "&a [*a]", "2026-01-01", "2026-01-01T00:00:00+99:00", "\x00"),
    *('"\\u202e"', "'\x1b[31m'", "' '", "x" * 5_000, "? [a, b]", "- x", "|", ">-", "%", "@x", "`x`", "\t", "'[/x]'"),
    *("[" * 2_000, "{a: " * 500, "../../../../etc/passwd", "file:///etc/passwd", "1" * 41, "-9223372036854775809"),
)


def in_text(draw: random.Random, text: str) -> str:
    """A line or a piece of the text, altered."""
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    match draw.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        case 2:
            lines[at] = " " * draw.randrange(1, 5) + lines[at]
        case 3:
            lines[at] = lines[at].lstrip()
        case 4:
            return text[: draw.randrange(len(text))]
        case 5:
            place = draw.randrange(len(text))
            return text[:place] + draw.choice("\x00\x1b\t:{}[]&*!|>%@`'\"#,?-\ud7ff\u2028\ufeff") + text[place:]
        case 6:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon or ':'} {draw.choice(SCALARS)}"
        case _:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon or ':'} *{draw.choice('abci')}"
            lines.insert(0, draw.choice((BOMB, MERGES, "a: &a [*a]\n")))
    return "\n".join(lines) + "\n"


def parsed(text: str) -> Any:
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def written(tree: object) -> str:
    """By libyaml, as `parsed`: ten times as quick, and what the test is about is how Headway reads."""
    return yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def in_tree(draw: random.Random, text: str) -> str:
    """A value somewhere in the parsed tree, altered."""
    tree = parsed(text)
    places: list[tuple[Any, Any]] = []
    rest = [tree]
    while rest:
        each = rest.pop()
        for key, value in each.items() if isinstance(each, dict) else enumerate(each):
            places.append((each, key))
            if isinstance(value, dict | list):
                rest.append(value)
    parent, key = draw.choice(places)
    other, other_key = draw.choice(places)
    match draw.randrange(7):
        case 0:
            del parent[key]
        case 1:
            parent[key] = copy.deepcopy(other[other_key])
        case 2:
            parent[key] = [parent[key]] * draw.choice((1, 3, 2_000))
        case 3:
            parent[key] = {str(parent[key])[:50]: parent[key]}
        case 4 if isinstance(parent, dict):
            parent[f"{key}x" if isinstance(key, str) else 7] = parent.pop(key)
        case 5:
            inner: Any = parent[key]
            for _ in range(draw.choice((2, 100))):
                inner = [inner]
            parent[key] = inner
        case _:
            marker = "MARKED"
            parent[key] = marker
            return written(tree).replace(marker, draw.choice(SCALARS), 1)
    return written(tree)


def refusal(load: Load, path: Path) -> ConfigError | None:
    try:
        load(path)
    except ConfigError as error:
        return error
    return None


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of everything that the shipped files name."""
    for folder, pattern in ((DEPLOYMENTS, "*.yaml"), (CONTRACTS, "*.yaml")):
        target = tmp_path / folder.relative_to(REPOSITORY)
        target.mkdir(parents=True)
        for path in folder.glob(pattern):
            (target / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_altered_files_load_or_are_refused_by_name_at_once(project: Path) -> None:
    loads: list[tuple[Path, Load]] = [
        *((path, load_pipeline) for path in sorted((project / "deployments").glob("*-*.yaml"))),
        (project / "deployments" / "digits.yaml", load_pipeline),
        *((path, load_contract) for path in sorted((project / "data_contracts" / "contracts").glob("*.yaml"))),
        (project / "deployments" / "profiles.yaml", lambda _: load_profile(project, "production")),
    ]
    draw, begun_bytes = random.Random(15), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    num_refused = 0
    for number in range(NUM_MUTATIONS):
        path, load = loads[number % len(loads)]
        text = path.read_text()
        altered = draw.choice((in_text, in_tree))(draw, text)
        path.write_bytes(altered.encode("utf-8", "surrogatepass"))
        started_s = time.process_time()
        told = f"mutation {number} of {path.name}"
        try:
            error = refusal(load, path)
        except Exception as unexpected:
            raise AssertionError(f"{told}:\n{altered[:3_000]}") from unexpected
        finally:
            path.write_text(text)
        assert time.process_time() - started_s < MAX_S, told
        if error is not None:
            num_refused += 1
            assert path.name in error.where, f"{told}: {error}"
            assert error.what and len(str(error)) < 20_000, told
            assert error.advice or ":" in error.what, f"{told}: neither advice nor a key: {error}"
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - begun_bytes
    assert grown_bytes < MAX_GROWTH_BYTES
    assert NUM_MUTATIONS // 2 < num_refused < NUM_MUTATIONS, "they are no mutations, or nothing loads"
