"""The text of each reference page, by its file's name."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import typer.main

import headway
from headway.data_contracts.store import documents, errors
from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.types.report_text import length
from headway.flows import watch
from headway.flows.accounts.objectives import CLASS_OBJECTIVES, WINDOW_DAYS
from headway.flows.act.editor_schemas import FileKind
from headway.flows.act.explain import Explanation, KeyHelp, explain
from headway.flows.cli.command_line import PANELS, app
from headway.flows.monitoring.families import FAMILIES
from headway.flows.report.summary import AWAITING_APPROVAL
from headway.flows.windows import admission
from headway.public import PLACES

FOLDER = Path(__file__).parent
T = TypeVar("T")
REPOSITORY = FOLDER.parents[1]
PACKAGES = ("flows", "tasks", "training", "data_contracts", "headway")
MAX_DEPTH = 8

STATES = {
    "AwaitingApproval": "The model passed everything but a person's approval.",
    "Stopped": "A person, or the run's own bound, stopped it; a checkpoint is kept.",
    "WindowClosed": "Its window closed; the next one resumes it.",
    "CostBoundReached": "It, or its pipeline in this month, has cost what it may; raised, or next month, it continues.",
    "Starving": "Too many windows in a row closed before it was finished.",
    "Held": "A person holds the pipeline.",
    "Infrastructure": "Machines or servers were missing; a trigger asks for it again.",
    "OutsideWindow": "No window is open.",
    "WindowTooShort": "Less than `min_useful_s` of the window was left.",
    "Skipped": "A person skips this window.",
    "Blackout": "The day is a blackout.",
    "Missed": "It started after its window's end.",
    "NotDue": "Of a watch: nothing is over its limit.",
    "Requested": "Of a watch: a retrain was asked for, or the one asked for before has not ended yet.",
    "WaitingForWindow": "Of a watch: due, and the windows are closed.",
    "PipelinePaused": "Of a watch: due, and a person holds the pipeline.",
    "WaitingForRun": "Of a watch: a retrain runs, or starts within a minute; the look after its end decides.",
    "PreviousRequestFailed": "Of a watch: the one asked for failed; the same data are not asked for again.",
}
"""Names that Headway gives to states of flow runs and tasks, beside Prefect's own."""

SET_BY_PEOPLE = {
    "HEADWAY_PROJECT": "Folder where relative pipeline files and the default workspace start; else the current folder.",
    "HEADWAY_WORKSPACE": "Folder or URI of the workspace; else `workspace` in the project's folder.",
    "HEADWAY_PREFECT_RECORDS": "`1`: a retrain without a configured server starts one, and is on record in Prefect.",
    "HEADWAY_LOCAL": "Where work in progress of a workspace in object storage lies; else the user's cache folder.",
    "HEADWAY_PROFILE": "Profile whose prices `cost_bound` goes by, set by `headway deploy`; else the only priced one.",
    "HEADWAY_LIMITS": "Prefix of the concurrency limits that count devices; `headway deploy` sets it.",
    "HEADWAY_MLFLOW_AUTH_STRING": "`user:password` of MLflow's server with `--app-name headway`.",
    "HEADWAY_PUSHGATEWAY": "Address of a Pushgateway that gets [the last word](../how-to/monitoring.md#last-words) "
    "of flow runs; it may hold `user:password@`.",
    "HEADWAY_LOG_FORMAT": "`json`: lines of ranks are written as JSON, too; `text` without it.",
}
SET_BY_HEADWAY = {
    "HEADWAY_ATTEMPT": "Number of the attempt.",
    "HEADWAY_ATTEMPT_DIR": "Folder of the attempt.",
    "HEADWAY_COLLECTIVE_TIMEOUT_S": "Most seconds that a rank waits for its peers within a step.",
    "HEADWAY_CONTINUED_BY": "The `headway ci` that compares settings over seeds, which is what continues their runs.",
    "HEADWAY_GUARD_PID": "The guard that owns a process.",
    "HEADWAY_GUEST_TOKEN": "Carried by all that a user's code starts while it is tried, so that nothing is left.",
    "HEADWAY_JOB": "A scheduler's job that supervises a run.",
    "HEADWAY_EXECUTION": "When a rank keeps checkpoints, what it profiles, and how it cuts gradients to send them.",
    "HEADWAY_LOADER": "How a rank's loader works.",
    "HEADWAY_LOG_PIPE": "Where a guard in a pod writes JSON lines.",
    "HEADWAY_MACHINE": "The machine's name, as it is excluded by.",
    "HEADWAY_MANDATE": "The attempt's fence.",
    "HEADWAY_NODE": "Number of the node.",
    "HEADWAY_SPEEDS": "How fast ranks are beside each other, as `launch.speeds` says it.",
    "HEADWAY_STRAGGLERS": "`rebalance`: ranks share batches out by what these take them.",
    "HEADWAY_NODES_PER_RACK": "How many consecutive nodes share a switch.",
    "HEADWAY_POD": "Name of the pod.",
    "HEADWAY_PODS": "How a job's supervisor reaches its pods.",
    "HEADWAY_POD_ADDRESS": "Address of the pod.",
    "HEADWAY_RANKS_HERE": "Ranks on this node.",
    "HEADWAY_RUN_TOKEN": "Carried by every process of an attempt, so that none is left.",
    "HEADWAY_STOP_GRACE_S": "How long ranks have to keep a checkpoint.",
    "HEADWAY_STOP_REQUEST": "Where a stop is asked for.",
    "HEADWAY_UI_TOKEN": "Carried by the servers of `headway ui`.",
}
FIRST_STEPS = (
    ("2, 3, 4", "Mend the pipeline file, the data or what breaks the contract; another try fails in the same way."),
    ("5", "Bytes differ from their digest: bring back what is named; what Headway made is made again."),
    ("6", "Training failed: read what the first rank wrote, `headway logs RUN --rank N`."),
    ("7, 9", "The policy said no; or the registry did not answer, or somebody else moved the champion first."),
    ("8", "Put right the workspace, disk, port, server or machine that is named."),
    ("10", "Read which tensors, figures and first step differ: another library, processor or number of threads?"),
    ("70", "Report it with the file that the message names."),
    ("79", "It has cost what it may: raise `cost_bound`, or wait for the next month. Another try before is refused."),
    ("75, 77", "Nothing: it was stopped and continues, or nothing may run now."),
)
"""Of a person, by exit code; every code of an error class has one."""
MADE_STATES = frozenset({"Completed", "Failed", "Crashed", "Cancelled", "Cancelling", "Pending", "State"})
"""What Prefect's states are made by."""
VARIABLE = re.compile(r"HEADWAY_[A-Z_]+")


def pages() -> dict[str, str]:
    """Every page."""
    return {
        "cli.md": cli_page(),
        "pipeline-file.md": keys_page("pipeline", "Pipeline file", "One YAML file says everything about one model."),
        "contract-file.md": keys_page("contract", "Contract", "What source data must be."),
        "profiles-file.md": keys_page("profiles", "Profiles", "Where to deploy: `deployments/profiles.yaml`."),
        "exit-codes.md": exit_codes_page(),
        "states.md": states_page(),
        "metrics.md": metrics_page(),
        "environment.md": environment_page(),
        "documents.md": documents_page(),
        "python.md": python_page(),
    }


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *(part.strip("\n") for part in parts if part))) + "\n"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def cli_page() -> str:
    """Every command, by the panels of `headway --help`."""
    root: Any = typer.main.get_command(app)
    parts = ["Each command has `--help`. [Exit codes](exit-codes.md) are the same for all."]
    for panel, names in PANELS.items():
        parts.append(f"## {panel}")
        for name in names:
            parts += _command(f"headway {name}", root.commands[name])
    return _page("Commands", *parts)


def _command(name: str, command: Any) -> Iterator[str]:
    if below := getattr(command, "commands", None):
        for each, inner in below.items():
            yield from _command(f"{name} {each}", inner)
        return
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    usage = " ".join((name, *(_argument(each) for each in arguments)))
    yield f"### {name}"
    yield inspect.cleandoc(command.help or "")
    yield f"```text\n{usage}{' [OPTIONS]' if len(shown) > len(arguments) else ''}\n```"
    rows = [_parameter(each) for each in shown]
    if rows:
        yield _table(("parameter", "meaning", "default"), rows)


def _argument(each: Any) -> str:
    name = (each.metavar or each.name).upper()
    return name if each.required else f"[{name}]"


def _parameter(each: Any) -> tuple[str, str, str]:
    if each.param_type_name == "argument":
        names = (each.metavar or each.name).upper()
    else:
        names = ", ".join([*each.opts, *each.secondary_opts])
    annotation = each.type_descriptor.annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    kinds = f" One of {', '.join(_code(str(choice)) for choice in choices if str(choice))}." if choices else ""
    default = "required" if each.required else "" if each.default in (None, "", False, ()) else _code(str(each.default))
    return _code(names), f"{' '.join((each.help or '').split())}{kinds}".strip(), default


def keys_page(kind: FileKind, title: str, what: str) -> str:
    """Every key of a kind of file, a section for each that has keys of its own."""
    by_command = (
        f"`headway explain KEY{'' if kind == 'pipeline' else f' --in {kind}'}` says the same on the command line."
    )
    return _page(title, f"{what} {by_command}", *_keys(kind, explain("", kind), 0))


def _keys(kind: FileKind, here: Explanation, depth: int) -> Iterator[str]:
    prefix = f"{here.key}." if depth else ""
    if depth:
        yield f"## {here.key}"
        yield here.meaning
        if here.effect:
            yield f"An edit: {here.effect}."
    yield _table(("key", "holds", "default", "meaning"), [_key(each) for each in here.keys])
    for each in here.keys:
        below = explain(f"{prefix}{each.key}", kind)
        if below.keys and depth < MAX_DEPTH:
            yield from _keys(kind, below, depth + 1)


def _key(each: KeyHelp) -> tuple[str, str, str, str]:
    default = "required" if each.required else _code(each.default)
    return _code(each.key), _escaped(each.type), default, _escaped(each.meaning)


def _escaped(text: str) -> str:
    """Text whose signs of HTML are none, outside of code."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


@cache
def classes_in_code() -> dict[str, tuple[str, ast.ClassDef]]:
    """Public classes of the product by name, of which none is there twice that a page is about: module, and source."""
    found = {}
    for package in PACKAGES[:-1]:
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            module = ".".join(("headway", *path.relative_to(REPOSITORY).with_suffix("").parts))
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name] = (module, node)
    return found


def _subclasses(of: type[T]) -> Iterator[tuple[type[T], ast.ClassDef]]:
    """By module and name; whatever is below `of` in whatever file."""
    below, size = {of.__name__}, 0
    while size != len(below):
        size = len(below)
        for name, (_, node) in classes_in_code().items():
            if any(isinstance(base, ast.Name) and base.id in below for base in node.bases):
                below.add(name)
    for name in below - {of.__name__}:
        module, node = classes_in_code()[name]
        yield getattr(import_module(module), name), node


def error_classes() -> list[type[HeadwayError]]:
    """All, wherever they are."""
    found = (each for each, _ in _subclasses(HeadwayError))
    return sorted(found, key=lambda each: (each.exit_code, len(each.__mro__), each.__name__))


def exit_codes_page() -> str:
    rows = [
        (
            str(each.exit_code),
            _code(each.__name__),
            _code(each.__mro__[1].__name__) if each.__mro__[1] is not HeadwayError else "",
            _code(str(getattr(each, "cause", ""))),
            "yes" if each.retryable else "no",
            _first(each.__doc__),
        )
        for each in error_classes()
    ]
    other = [
        ("0", "Done, also where the new version stays challenger: `is_champion` in `--json` says."),
        (str(errors.EXIT_DEFECT), "A defect of Headway's own; the message names the file with the traceback."),
        (str(errors.EXIT_HUNG_UP), "The terminal was closed."),
        (str(errors.EXIT_INTERRUPTED), "Ctrl-C."),
        (str(errors.EXIT_TERMINATED), "SIGTERM."),
    ]
    return _page(
        "Exit codes and errors",
        "A command's exit code says what kind of failure it was. Retried means: by the stage itself, before it fails.",
        _table(("exit", "error", "a kind of", "cause", "retried", "meaning"), rows),
        "`Rescheduled` passes between a scheduler's jobs and a flow; no command ends with it.",
        "Without an error of these:",
        _table(("exit", "meaning"), other),
        "What to do first:",
        _table(("exit", "what to do first"), FIRST_STEPS),
        "Every error says what happened, where, and what to do next. See [on call](../operations/on-call.md).",
    )


def state_names() -> set[str]:
    """Those that the code gives: where runs end, and by name wherever a state is made."""
    return {AWAITING_APPROVAL, *admission.ENDED_BY_NAME, *watch.ENDED_BY_NAME, *_named_states()}


def _named_states() -> Iterator[str]:
    for path in (path for package in ("flows", "tasks") for path in sorted((REPOSITORY / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in MADE_STATES:
                continue
            for given in (each.value for each in node.keywords if each.arg == "name"):
                if isinstance(given, ast.Constant):
                    yield str(given.value)
                elif isinstance(given, ast.Name) and given.id.isupper():
                    module = ".".join(("headway", *path.relative_to(REPOSITORY).with_suffix("").parts))
                    yield str(getattr(import_module(module), given.id))


def states_page() -> str:
    rows = [(_code(name), meaning) for name, meaning in STATES.items()]
    return _page(
        "States in Prefect",
        "Beside Prefect's own states, runs and tasks end under these names. Only `Infrastructure` is a failure.",
        _table(("state", "meaning"), rows),
        "[Windows](../how-to/windows.md) and [triggers](../how-to/triggers.md) say when each comes.",
    )


def variables_in_code() -> set[str]:
    """Names of environment variables of ours that stand in the product's code."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            source = path.read_text()
            if not VARIABLE.search(source):
                continue  # most files; to parse is what takes time
            strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
            found |= {text for text in strings if isinstance(text, str) and VARIABLE.fullmatch(text)}
    return found


def metrics_page() -> str:
    """Every family that the exporter knows."""
    rows = [
        (_code(name), family.kind, ", ".join(map(_code, family.labels)), family.help)
        for name, family in FAMILIES.items()
    ]
    about = (
        "`headway metrics` exports these, in Prometheus's text format and as OpenMetrics. Counters of what is over "
        "come from the accounts of flow runs. They survive the exporter and the ledgers. Counters of steps, "
        "checkpoints and interruptions also count what goes on here. Seconds by state and recoveries count when a "
        "flow run is over."
    )
    after = (
        "States are those of [the account of a run](../concepts/time-account.md), causes those of "
        "[errors](exit-codes.md). [Deploy](../how-to/deploy.md#prometheus) says how to collect them."
    )
    by_class = [
        (
            _code(name),
            f"{each.success:.1%}",
            _share(each.in_window),
            length(each.recovery_p95_s),
            length(each.checkpoint_age_s),
        )
        for name, each in CLASS_OBJECTIVES.items()
    ]
    objectives = (
        f"## Objectives\n\nOver {WINDOW_DAYS} days, by the [job class](pipeline-file.md) of a pipeline. Failures by "
        "people and data count for none. Rules, boards, reports and the freeze of promotion are made of this table."
    )
    titles = (
        "job class",
        "retrains succeed",
        "those in windows are done before they close",
        "recoveries of a day, 95th percentile",
        "newest checkpoint of a run that trains",
    )
    families = _table(("family", "kind", "labels", "meaning"), rows)
    return _page("Metrics", about, families, after, objectives, _table(titles, by_class))


def _share(target: float | None) -> str:
    return "no matter" if target is None else f"{target:.1%}"


def environment_page() -> str:
    return _page(
        "Environment variables",
        "Set these:",
        _table(("variable", "meaning"), [(_code(name), meaning) for name, meaning in SET_BY_PEOPLE.items()]),
        "Prefect's (`PREFECT_API_URL`, `PREFECT_API_AUTH_STRING`, `PREFECT_HOME`), MLflow's (`MLFLOW_TRACKING_URI`, "
        "its credentials) and the object store's (`AWS_PROFILE`, `AWS_ENDPOINT_URL`) work as they do without Headway.",
        "OpenTelemetry's (`OTEL_EXPORTER_OTLP_ENDPOINT` and the others that [traces and logs](../operations/traces.md) "
        "lists) say where traces go. `TRACEPARENT` is the span that started a retrain; ranks get that of the flow run.",
        "Headway sets these for processes that it starts. Leave them alone:",
        _table(("variable", "meaning"), [(_code(name), meaning) for name, meaning in SET_BY_HEADWAY.items()]),
    )


def documents_page() -> str:
    """Every kind of document with its fields, whose meaning is the string below each."""
    order = [node.name for node in ast.parse(inspect.getsource(documents)).body if isinstance(node, ast.ClassDef)]
    found = sorted(
        _subclasses(documents.Document),
        key=lambda each: (order.index(each[1].name) if each[1].name in order else len(order), each[0].kind),
    )
    parts = ["What stages hand on: immutable JSON, named by its own SHA-256, below `documents/KIND/` of the workspace."]
    for made, node in found:
        parts += [f"## {made.kind}", _escaped(f"{_code(made.__name__)}. {_first(made.__doc__)}".strip())]
        parts.append(_table(("field", "type", "meaning"), list(_fields(node))))
    return _page("Documents", *parts)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(node.body):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name) or line.target.id == "kind":
            continue
        after = node.body[number + 1] if number + 1 < len(node.body) else None
        is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        meaning = " ".join(str(after.value.value).split()) if is_doc else ""  # type: ignore[union-attr]
        yield _code(line.target.id), _code(ast.unparse(line.annotation)), _escaped(meaning)


RETURNED = ("ModelVersion",)
"""Classes behind what a program gets, beside those that functions say they return."""


def python_page() -> str:
    """What `from headway import ...` offers, and what its functions return."""
    parts = ["`from headway import ...`: recipes and encoders are written against these, and programs call them."]
    for name in sorted(PLACES):
        parts += _python_part(name, getattr(headway, name))
    parts.append("## What functions return")
    parts.append("Programs get these and do not make them.")
    for name, made in _returned().items():
        parts += _python_part(name, made)
    return _page("Python", *parts)


def python_classes() -> Iterator[tuple[str, type]]:
    """Those that the page of Python has a section for."""
    offered = {name: getattr(headway, name) for name in sorted(PLACES)} | _returned()
    yield from ((name, made) for name, made in offered.items() if inspect.isclass(made))


def fields_without_meaning(made: type) -> list[str]:
    """Names of public fields and methods; a class's own constants, and its constructor, need none."""
    node = _class_node(made)
    silent = [field.strip("`") for field, type_, meaning in _fields(node) if not meaning and "ClassVar" not in type_]
    return silent + [each.name for each in _methods(node) if not ast.get_docstring(each) and each.name != "__init__"]


def _returned() -> dict[str, type]:
    """Classes that public functions say they return."""
    public = (getattr(headway, name) for name in sorted(PLACES))
    functions = (made for made in public if not inspect.isclass(made))
    named = (re.findall(r"\w+", str(inspect.signature(made).return_annotation)) for made in functions)
    names = sorted({*RETURNED, *(name for each in named for name in each)})
    return {name: getattr(import_module(classes_in_code()[name][0]), name) for name in names}


def _python_part(name: str, made: Any) -> Iterator[str]:
    yield f"## {name}"
    yield f"```python\n{_signature(name, made)}\n```"
    yield _escaped(_first(made.__doc__))
    rest = inspect.cleandoc(made.__doc__ or "").partition("\n\n")[2]
    if rest:
        yield f"```text\n{rest}\n```"
    if inspect.isclass(made):
        node = _class_node(made)
        fields = [(field, meaning) for field, _, meaning in _fields(node) if meaning]
        if fields:
            yield _table(("field", "meaning"), fields)
        for method in _methods(node):
            doc = inspect.cleandoc(ast.get_docstring(method) or "")
            if doc:
                yield f"### {name}.{method.name}"
                yield _escaped(_first(doc))
                rest = doc.partition("\n\n")[2]
                yield f"```text\n{rest}\n```" if rest else ""


def _class_node(made: type) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(made))).body[0]
    assert isinstance(node, ast.ClassDef)
    return node


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Public ones, and the constructor."""
    found = (each for each in node.body if isinstance(each, ast.FunctionDef))
    return [each for each in found if not each.name.startswith("_") or each.name == "__init__"]


def _signature(name: str, made: Any) -> str:
    if not inspect.isclass(made):
        return f"def {name}{inspect.signature(made)}"
    node = _class_node(made)
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"class {name}({bases}):" if bases else f"class {name}:"]
    lines += [f"    {ast.unparse(each)}" for each in node.body if isinstance(each, ast.AnnAssign)]
    for each in _methods(node):
        returns = f" -> {ast.unparse(each.returns)}" if each.returns is not None else ""
        lines.append(f"    def {each.name}({ast.unparse(each.args)}){returns}")
    return "\n".join(lines)


def _first(doc: str | None) -> str:
    """A docstring's first paragraph, in one line."""
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
