"""Every error a person can meet, with its cause, whether a retry can help, and the exit code of the command.

    HeadwayError
    ├── ConfigError            2   the pipeline file, an argument or a recipe is wrong
    ├── DataError              3   a source is empty, unreadable or changes while it is read
    │   └── EncodingRefused    3   rows are other than an encoder was fitted for
    ├── ContractViolation      4   the data break their contract, or carry no matching receipt
    ├── IntegrityError         5   bytes differ from the digest that names them
    ├── TrainingFailed         6   the retry budget is spent, or a rank failed for good
    │   └── RanksLost          6   ranks or machines were lost until the budget was spent
    ├── PromotionRefused       7   the promotion policy says no
    ├── EnvironmentProblem     8   workspace, disk, port or machine
    │   ├── PeerFailed         8   another rank failed, and with it what all do together
    │   ├── RunBusy            8   another process works on the run
    │   └── Superseded         8   a later attempt of the run has begun, or another machine has it
    ├── RegistryError          9   MLflow or a ref refused
    │   └── RefConflict        9   another writer moved the ref first
    ├── NotReproduced         10   a version that was trained again came to other bits
    ├── RunStopped            75   asked to stop; a checkpoint was kept
    │   └── CostBoundReached  79   it has cost what it may; a checkpoint was kept
    ├── OutsideWindow         77   a retrain that keeps to its windows found them closed; nothing was done
    └── PipelineHeld          77   a person holds the pipeline; nothing was done

`0` is success, `70` a defect of Headway's own, `129` a closed terminal, `130` Ctrl-C, `143` SIGTERM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from headway.data_contracts.store.plain_text import one_line

Cause = Literal[
    "config",
    "data",
    "contract",
    "integrity",
    "training",
    "promotion",
    "oom",
    "environment",
    "registry",
    "stopped",
    "infrastructure",
]

StopReason = Literal["requested", "step reached", "window closed", "budget spent", "cost bound reached"]
"""Why a run ends before its last step and may go on: somebody wanted it, it came to the step it was to stop at, its
window or its own time is over, or it has cost what it may."""

EXIT_DEFECT = 70
EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def shortened(text: str, max_chars: int) -> str:
    """The text on one line, cut at a word's end and marked by an ellipsis where it is longer."""
    line = " ".join(text.split())
    if len(line) <= max_chars:
        return line
    kept = line[: max_chars - 1]
    return f"{kept.rpartition(' ')[0] or kept}…"


LIST_TYPES = frozenset({"tuple_type", "list_type", "set_type", "frozen_set_type"})
MAPPING_TYPES = frozenset({"dict_type", "mapping_type", "model_type", "model_attributes_type"})
_REQUIREMENTS = {
    "string_type": "text",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "a date, such as 2026-12-24"),
    "invalid-json-value": "text",  # a date, which stands without quotes
    **dict.fromkeys(LIST_TYPES, "a list"),
    **dict.fromkeys(MAPPING_TYPES, "a mapping of keys to values"),
}


def requirement(kind: str) -> str:
    """What a value of the wrong type must be, by pydantic's name of the problem; empty for problems of other kinds."""
    return _REQUIREMENTS.get(kind, "")


def choices_of(context: Mapping[str, Any]) -> list[str]:
    """The values of which pydantic wants one."""
    expected = str(context.get("expected") or context.get("expected_tags") or "")
    return expected.replace(" or ", ", ").replace("'", "").split(", ") if expected else []


def plain_message(detail: Mapping[str, Any]) -> str:
    """A problem of pydantic's (`ErrorDetails`) in the words of YAML: who writes a file need not know Python's types."""
    kind, context = detail["type"], detail.get("ctx") or {}
    if required := requirement(kind):
        return f"must be {required}"
    if choices := choices_of(context):
        return f"must be {'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
    if kind == "union_tag_not_found":
        return f"{str(context['discriminator']).replace(chr(39), '`')} is missing"
    if kind in ("too_short", "too_long"):
        least, limit = ("least", context["min_length"]) if kind == "too_short" else ("most", context["max_length"])
        return f"must have at {least} {limit} item{'' if limit == 1 else 's'}"
    return re.sub(r"^(?:Input|String|Value) should ", "must ", str(detail["msg"]).removeprefix("Value error, "))


class HeadwayError(Exception):
    """What happened, where, and what to do next.

    Args:
        what: one sentence, no trailing newline.
        where: the file, key, rank or URI concerned.
        advice: the next step for a person.
    """

    cause: ClassVar[Cause] = "infrastructure"
    """What kind of fault it was, for records, retries and notifications."""
    retryable: ClassVar[bool] = False
    """Whether a stage tries again by itself."""
    exit_code: ClassVar[int] = EXIT_DEFECT
    """What a command ends with that ends by it."""

    def __init__(self, what: str, *, where: str = "", advice: str = "") -> None:
        self.what, self.where, self.advice = what, where, advice
        super().__init__(what, where, advice)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross processes; the default would hand keyword-only arguments over by position.
        return _rebuild, (type(self), self.what, self.where, self.advice)

    def __str__(self) -> str:
        text = f"{one_line(self.where)}: {self.what}" if self.where else self.what
        return f"{text} {self.advice}" if self.advice else text


def _rebuild(kind: type[HeadwayError], what: str, where: str, advice: str) -> HeadwayError:
    return kind(what, where=where, advice=advice)


class ConfigError(HeadwayError):
    """A file, option or request cannot be used as it is. A person has to edit it."""

    cause = "config"
    exit_code = 2


class DataError(HeadwayError):
    """The data cannot be read, or are not what the pipeline file says of them."""

    cause = "data"
    exit_code = 3


class EncodingRefused(DataError):
    """A column is gone or of another type, or a value is none that the encoder knows; trying again changes nothing."""


class ContractViolation(HeadwayError):
    """The data break their contract: nothing is trained on them."""

    cause = "contract"
    exit_code = 4


class IntegrityError(HeadwayError):
    """Bytes are gone, or are not those that their digest names."""

    cause = "integrity"
    exit_code = 5


class TrainingFailed(HeadwayError):
    """Ranks failed, and the retry budget is spent or would not help."""

    cause: ClassVar[Cause] = "training"
    exit_code = 6


class RanksLost(TrainingFailed):
    """Not the fault of code or data: the same run may be carried on where machines are well."""

    cause = "infrastructure"


class PromotionRefused(HeadwayError):
    """The promotion policy refuses the version; it stays registered."""

    cause = "promotion"
    exit_code = 7


class EnvironmentProblem(HeadwayError):
    """A machine, workspace, server or installation cannot be used."""

    cause: ClassVar[Cause] = "environment"
    exit_code = 8


class PeerFailed(EnvironmentProblem):
    """Another rank failed and says itself why: of the words of all ranks of an attempt these count last."""

    cause = "infrastructure"


class RunBusy(EnvironmentProblem):
    """Another process works on the run. Nothing is wrong with it: who waits finds what that process makes."""


class Superseded(EnvironmentProblem):
    """What an earlier attempt, or an earlier owner, would publish is refused; it ends."""


class RegistryError(HeadwayError):
    """The registry or a ref could not be read or moved."""

    cause = "registry"
    retryable = True
    exit_code = 9


class RefConflict(RegistryError):
    """Compare-and-set lost: read the ref again and decide anew."""


class NotReproduced(HeadwayError):
    """It was trained to its end; what differs is told beside it."""

    cause = "integrity"
    exit_code = 10


class RunStopped(HeadwayError):
    """Ended in good order; the same command continues it."""

    cause = "stopped"
    exit_code = 75

    def __init__(
        self, what: str, *, where: str = "", advice: str = "", reason: StopReason | None = "requested"
    ) -> None:
        self.reason = reason
        """None: another process knows."""
        super().__init__(what, where=where, advice=advice)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_stopped, (type(self), self.what, self.where, self.advice, self.reason)


def _rebuild_stopped(
    kind: type[RunStopped], what: str, where: str, advice: str, reason: StopReason | None
) -> RunStopped:
    return kind(what, where=where, advice=advice, reason=reason)


class CostBoundReached(RunStopped):
    """Ended in good order, and not continued before `cost_bound` is raised or its month is over."""

    # Of its own: a script that runs a stopped retrain again at once would be refused for ever.
    exit_code = 79


def stop_error(what: str, *, where: str = "", advice: str = "", reason: StopReason | None) -> RunStopped:
    """The error of a stop, by its reason."""
    kind = CostBoundReached if reason == "cost bound reached" else RunStopped
    return kind(what, where=where, advice=advice, reason=reason)


class OutsideWindow(HeadwayError):
    """No failure: the next window's start comes by itself."""

    cause = "stopped"
    exit_code = 77


class PipelineHeld(HeadwayError):
    """No failure: a person holds the pipeline, and a person lets it go."""

    cause = "stopped"
    exit_code = 77
