"""What `headway tune` found, as a table."""

from __future__ import annotations

from rich.table import Table

from headway.flows.config.tuned import shown
from headway.flows.console.console import headed, plain_console, print_table
from headway.tasks.tuning.advice import Advice
from headway.tasks.tuning.record import TunedSetting, Tuning, path_of


def print_tuning(tuning: Tuning) -> None:
    console = plain_console()
    trials = f"{tuning.num_rounds} rounds of {tuning.num_steps} steps a value, {tuning.took_s:.0f} s in all"
    console.print()
    console.print(headed(tuning.pipeline, f"  {trials}, on {tuning.machine.host}"))
    table = Table("setting", "value", "a step", "rounds", box=None, padding=(0, 2))
    for setting in tuning.settings:
        for number, each in enumerate(setting.measured):
            low, high = min(each.rounds_s), max(each.rounds_s)
            chosen = "taken" if setting.taken and each.settings == setting.taken else ""
            table.add_row(
                setting.name if not number else "",
                f"{each.shown}{'' if number else ' (now)'}",
                f"{1000 * each.median_s:.2f} ms",
                f"{1000 * low:.2f} to {1000 * high:.2f}  {chosen}".rstrip(),
            )
    print_table(console, table)
    for setting in tuning.settings:
        console.print(f"{setting.name:<14} {_verdict(setting)}")
        for failure in setting.failed:
            console.print(f"{'':<14} {failure}")
    moved = [f"{setting.name} {value}" for setting in tuning.settings for value in setting.moved_bits]
    same = f"came to the same bits, {tuning.tensors_sha256[:16]}"
    out = f", but {', '.join(moved)}, which is out" if moved else ""
    console.print(f"\nAll values {same}{out}.")
    if not tuning.was_a_choice:
        console.print("There was nothing to choose between; keys that the pipeline file says are not tried.")
    elif tuning.taken:
        console.print(f"Retrains on equal hardware and versions take it from {path_of(tuning.pipeline)} on.")
    else:
        console.print("Nothing is better than what there is by more than the measurements spread.")


def print_advice(advice: Advice, page: str) -> None:
    """What changes the model, and so is for a person, or a search, to decide."""
    console = plain_console()
    console.print("\nFor you to decide, since it changes the model or its run's key:")
    console.print(f"{'learning rate':<14} {rates_line(advice)}")
    console.print(f"{'micro-batch':<14} {micro_batch_line(advice)}")
    console.print(f"{'compile':<14} {compiled_line(advice)}")
    console.print(f"{'page':<14} {page}")


def rates_line(advice: Advice) -> str:
    found = advice.learning_rates
    beyond = "" if found.diverges_at is None else f"; at {found.diverges_at:g} it diverges"
    now = f"now {advice.learning_rate:g}{beyond}"
    if found.failure:
        return f"{found.failure}; {now}"
    if found.wanted is None:
        return f"no rate lowers the loss by more than batches differ; {now}"
    low, high = found.wanted
    search = f"vary: {{optimizer.lr: {{log_uniform: [{low:g}, {high:g}]}}}}"
    if advice.matrix_lr is not None:
        # Both were moved, and for most of a model's weights it is the other that counts.
        search += f", derive: {{optimizer.matrix_lr: {advice.matrix_lr / advice.learning_rate:.6g} * optimizer.lr}}"
    return f"the loss falls from {low:g} to {high:g}: `{search}`; {now}"


def micro_batch_line(advice: Advice) -> str:
    now, *others = advice.micro_batches
    if not others:
        return f"{now.sequences}: a larger one does not cut the global batch among the ranks"
    largest, fastest = advice.largest, advice.fastest
    failure = next((f"; {each.failure}" for each in others if each.failure), "")
    assert now.step_s is not None and fastest.step_s is not None
    gain = now.step_s / fastest.step_s - 1
    faster = (
        f"{fastest.sequences} is fastest, {100 * gain:.0f} % more rows a second than {now.sequences}"
        if fastest != now and gain > 0
        else f"{now.sequences}, that of now, is fastest"
    )
    used = f"{largest.peak_bytes / (1 << 20):,.0f} MiB a rank"
    times = largest.sequences // now.sequences
    untried = f"; {times} times that of now was tried, larger ones were not" if advice.is_cut_short else ""
    return f"{largest.sequences} is the largest that ran, with {used}; {faster}{failure}{untried}"


def compiled_line(advice: Advice) -> str:
    found = advice.compiled
    if not found.is_better:
        return f"stays: {found.why}"
    return f"`training: {{compile: true}}`: {found.why}. Later steps are not proved, so that is another run's key"


def _verdict(setting: TunedSetting) -> str:
    return f"{shown(setting.taken)}: {setting.why}" if setting.taken else f"stays: {setting.why}"
