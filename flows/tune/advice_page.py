"""The page of what `headway tune --advise` measured. One file that needs nothing else."""

from __future__ import annotations

from headway.data_contracts.report.page import banner, definitions, page, section
from headway.data_contracts.report.plots import Axis, Plot, figure, key, pictures
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types.report_text import moment
from headway.flows.tune.report import compiled_line, micro_batch_line, rates_line
from headway.tasks.tuning.advice import Advice

CLIPPED = 1.5
"""Times the loss before training: what lies beyond would leave the rest flat."""


def render_html(advice: Advice) -> str:
    found = advice.learning_rates
    title = f"Advice for {advice.pipeline}"
    about = f"measured {moment(advice.measured_unix_s)} on {advice.machine.host}"
    told = [
        ("learning rate", html(rates_line(advice))),
        ("micro-batch", html(micro_batch_line(advice))),
        ("compile", html(compiled_line(advice))),
    ]
    sections = [
        banner(
            "warn",
            html(title),
            "yours to decide",
            html(f"Nothing of this is taken, for it changes the model or its run's key; {about}."),
        ),
        section("In short", definitions(told)),
        section("Learning rates", _rates(advice)) if found.losses else "",
        section("Micro-batches", _micro_batches(advice)) if len(advice.micro_batches) > 1 else "",
    ]
    return page(title, sections)


def _rates(advice: Advice) -> str:
    found = advice.learning_rates
    limit = found.losses[0] + (CLIPPED - 1) * abs(found.losses[0])
    raw = [(rate, loss) for rate, loss in zip(found.rates, found.losses, strict=False) if loss <= limit]
    smooth = [(rate, loss) for rate, loss in zip(found.rates, found.smoothed, strict=False) if loss <= limit]
    x = Axis.over("learning rate", found.rates, scale="log")
    y = Axis.over("loss", [loss for _, loss in (*raw, *smooth)])
    title = "Loss by learning rate, a step at each"
    plot = Plot(caption=title, x=x, y=y)
    plot.points(raw, "c1").line(smooth, "c0")
    for rate in (advice.learning_rate, *(found.wanted or ())):
        plot.rule((rate, y.low), (rate, y.high))
    legend = (
        f"{key('c1', 'of a step')} {key('c0', 'smoothed')}; lines upright: the file's rate, and the range to search"
    )
    return pictures([figure(plot.svg(), title, legend)])


def _micro_batches(advice: Advice) -> str:
    rows = [
        (each.sequences, advice.global_batch_sequences / each.step_s, each.peak_bytes / (1 << 20))
        for each in advice.micro_batches
        if each.step_s is not None
    ]
    sizes = Axis.over("rows of a micro-batch", [size for size, _, _ in rows], scale="log")
    speed = Axis.over("rows a second", [0.0, *(rate for _, rate, _ in rows)])
    memory = Axis.over("MiB a rank", [0.0, *(size for _, _, size in rows)])
    plots = [
        Plot(caption="Rows a second by micro-batch", x=sizes, y=speed),
        Plot(caption="Memory of a rank by micro-batch", x=sizes, y=memory),
    ]
    plots[0].line([(size, rate) for size, rate, _ in rows], "c0")
    plots[1].line([(size, used) for size, _, used in rows], "c1")
    return pictures([figure(plot.svg(), plot.caption) for plot in plots])
