"""`headway init`: a folder that retrains at once, and that a team can put under version control and deploy."""

from __future__ import annotations

import os
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from headway.data_contracts.sources.delimited import FOUND, CsvChoice
from headway.data_contracts.store.errors import ConfigError
from headway.flows.act.contract_init import (
    ContractDraft,
    NewFiles,
    num_decisions,
    print_profiled,
    require_name,
    slug,
    write_draft,
)
from headway.flows.act.editor_schemas import schema_comment
from headway.flows.config.pipeline_spec import SHIPPED, load_pipeline
from headway.flows.console.console import plain_console
from headway.flows.console.pipeline_names import OF_A_CONTRACT, OF_A_PIPELINE
from headway.training.config.encoder_specs import TabularEncoderSpec

TEMPLATES = SHIPPED / "deployments"
WORKFLOW = ".github/workflows/headway.yml"
NETWORK = "deployments/recipes/network.py"
SAMPLE = "data/breast-cancer.csv"
MEASURES = "radius texture perimeter area smoothness compactness concavity concave_points symmetry fractal_dimension"


NAME_ANOTHER = "Give another NAME, or draft with `headway contract init` in the project that is there."


class Project(NamedTuple):
    folder: Path
    drafted: ContractDraft
    is_sample: bool


def write_project(name: str, data: str, base: Path, *, label: str = "", given: CsvChoice = FOUND) -> Project:
    """Write a project's files, none of which may exist.

    Args:
        name: of the pipeline, and of the new folder; empty: the folder is `base`, and its name is the pipeline's.
        data: what contract and pipeline file are drafted from; empty: a table that comes with scikit-learn.
        base: the current folder.
        label: the column to predict; empty: guessed by its name.
        given: how delimited text is written.

    Raises:
        ConfigError: a file exists, the name is none, or something is said of text that is not there.
        DataError: no files, no rows, or unreadable ones.
    """
    if name:
        _require_no_data(name, base)
        require_name(name, where=f"headway init {name!r}")
    if given.options and not data:
        raise ConfigError("goes with data of your own.", where=given.options, advice="Say `--data` which they are.")
    folder, name = base / name, name or slug(base.name)
    texts = {
        ".gitignore": _template("project/gitignore"),
        "requirements.txt": f"headway=={version('headway')}\n",
        "deployments/profiles.yaml": schema_comment("profiles") + profiles_text(name),
        "deployments/recipes/__init__.py": "",
        WORKFLOW: workflow_text(name),
    }
    contract, pipeline = f"deployments/{name}{OF_A_CONTRACT}", f"deployments/{name}{OF_A_PIPELINE}"
    for file in (*texts, NETWORK, contract, pipeline, *(() if data else (SAMPLE,))):
        if (folder / file).exists():
            raise ConfigError("exists already, and is not overwritten.", where=str(folder / file), advice=NAME_ANOTHER)
    with NewFiles() as new:
        if not data:
            new.write(folder / SAMPLE, _sample())
        drafted = write_draft(
            new,
            data or SAMPLE,
            out=str(folder / contract),
            name=name,
            base=base if data else folder,
            label=label,
            given=given,
            project=folder,
        )
        texts[NETWORK] = _template(f"project/{_rows_of(drafted)}.py").replace(
            "in the pipeline file", f"in {drafted.pipeline.name}"
        )
        for file, text in texts.items():
            new.write(folder / file, text)
        new.keep()
    return Project(folder, drafted, is_sample=not data)


def _require_no_data(name: str, base: Path) -> None:
    """Raises `ConfigError`: what is given as the name is the data's file."""
    # Unlike `Path.is_file` it takes a name that is too long for one that is not there.
    if os.path.isfile(base / name):  # noqa: PTH113
        raise ConfigError(
            "is a file, and a project is called by a name.",
            where=f"headway init {name!r}",
            advice=f"To draft from it, say `headway init {slug(name)} --data {shlex.quote(name)}`.",
        )


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def profiles_text(name: str) -> str:
    """The shipped one, for a project of this name: of two projects of one name, each would remove the other's."""
    text, shipped = _template("profiles.yaml"), f"project: {'headway':<26} #"
    # A shipped file that was edited without this line would be written unadapted.
    assert text.count(shipped) == 1, shipped
    return text.replace(shipped, f"project: {name:<26} #")


def workflow_text(name: str) -> str:
    """The shipped one, for the project's own pipeline and an installed Headway."""
    text = _template("github/headway.yml")
    pip = "pip install --disable-pip-version-check"
    locked = f'{pip} --no-deps --require-hashes --requirement "$LOCK"\n          '
    own = f"{pip} --no-deps --no-build-isolation .\n"
    for shipped, adapted in {
        "# Copy to .github/workflows/headway.yml of your repository: every": "# Every",
        "env:\n  LOCK: locks/image.txt                 # every package is held against its digest\n\n": "",
        "pipeline: [stdlib-lm, digits, breast-cancer]": f"pipeline: [{name}]",
        "cache-dependency-path: locks/image.txt": "cache-dependency-path: requirements.txt",
        f"run: |\n          {locked}{own}": f"run: {pip} -r requirements.txt\n",
        f".venv/bin/{locked}.venv/bin/{own}": f".venv/bin/{pip} -r requirements.txt s3fs\n",
        "headway ci stdlib-lm": f"headway ci {name}",
    }.items():
        # A shipped file that was edited without this list would be written unadapted.
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, adapted)
    return text


def _rows_of(drafted: ContractDraft) -> str:
    """The template of a network for such rows."""
    encoder = load_pipeline(drafted.pipeline).shards.encoder
    if not isinstance(encoder, TabularEncoderSpec):
        return "tokens"
    return "number" if encoder.label_kind == "number" else "classes"


def _sample() -> str:
    """Scikit-learn's table of tissue samples, with names over its columns; `target` is 1 for a benign one."""
    import sklearn

    rows = (Path(sklearn.__file__).parent / "datasets/data/breast_cancer.csv").read_text().splitlines()[1:]
    columns = [f"{kind}_{measure}" for kind in ("mean", "error", "worst") for measure in MEASURES.split()]
    return "\n".join([",".join([*columns, "target"]), *rows]) + "\n"


def print_project(project: Project, console: Console | None = None) -> None:
    """What was written, and what to do next."""
    console = console or plain_console()
    drafted, folder = project.drafted, project.folder
    print_profiled(drafted, console)
    notes = {
        drafted.contract: f"what the data must be; {num_decisions(drafted)} things to decide, marked DECIDE",
        drafted.pipeline: "data, shards, training, promotion, registry",
        folder / NETWORK: "a network of your own, if you want one",
        folder / "deployments/profiles.yaml": "where `headway deploy` deploys to",
        folder / WORKFLOW: "holds each pull request against its base",
    }
    console.print()
    for place, (path, note) in zip(("wrote", *[""] * len(notes)), notes.items(), strict=False):
        console.print(f"{place:<6} {shlex.quote(str(path.relative_to(folder))):<42}  {note}", soft_wrap=True)
    name = drafted.pipeline.name.removesuffix(OF_A_PIPELINE)
    steps = [f"cd {shlex.quote(folder.name)}"] if folder != Path.cwd() else []
    steps += [f"headway plan {name}", f"headway retrain {name}"]
    for place, step in zip(("next", *[""] * len(steps)), steps, strict=False):
        console.print(f"{place:<6} {step}", soft_wrap=True)
    if project.is_sample:
        console.print(f"       {SAMPLE} is scikit-learn's, to begin with: `headway init NAME --data DATA` takes yours")
