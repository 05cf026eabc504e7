"""The style of Headway's HTML reports: inline, light and dark, readable in print."""

from __future__ import annotations

COLOURS = "\n".join(
    f".plot .line.c{number}, .plot .dots.c{number} {{ stroke: var(--c{number}); }} "
    f".plot .band.c{number}, .plot .bar.c{number}, .plot .dot.c{number} {{ fill: var(--c{number}); }} "
    f".swatch.c{number} {{ background: var(--c{number}); }}"
    for number in range(10)
)

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #5b6570; --line: #dfe3e8;
  --good: #116b34; --good-back: #e3f4e8; --bad: #b3151c; --bad-back: #fdeaea; --warn: #7a5200; --warn-back: #fdf3da;
  --now: #7fb0e6; --grid: #e8ebef; --heat: 31, 111, 196;
  --c0: #2a6fbd; --c1: #c4561b; --c2: #1d8a55; --c3: #a8389a; --c4: #8a6d00; --c5: #007f95; --c6: #b8264b;
  --c7: #5e5ad0; --c8: #5f7a1e; --c9: #77624f; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171b; --card: #1d2126; --ink: #e7eaee; --soft: #9aa5b1; --line: #333a42;
  --good: #6fdc94; --good-back: #16301f; --bad: #ff9a97; --bad-back: #3b1a1c; --warn: #f2c769; --warn-back: #35290f;
  --now: #35659c; --grid: #2a3037; --heat: 92, 158, 230;
  --c0: #6aa9ee; --c1: #f0935c; --c2: #5cc98f; --c3: #dd83d0; --c4: #d9b63f; --c5: #4fc3d6; --c6: #f27d98;
  --c7: #a19df5; --c8: #a9c462; --c9: #c4ab94; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
code { font: 0.92em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
header { display: flex; gap: 1.25rem; align-items: center; padding: 1.25rem 1.5rem; border-radius: 12px;
  border-left: 10px solid; }
header.good { background: var(--good-back); border-color: var(--good); }
header.warn { background: var(--warn-back); border-color: var(--warn); }
header.bad { background: var(--bad-back); border-color: var(--bad); }
header .mark { font-size: 3.25rem; line-height: 1; margin: 0; }
header.good .mark, header.good h1 { color: var(--good); }
header.warn .mark, header.warn h1 { color: var(--warn); }
header.bad .mark, header.bad h1 { color: var(--bad); }
h1 { margin: 0; font-size: 2rem; line-height: 1.2; }
.kicker { margin: 0; color: var(--soft); }
.kicker .version { font-variant-numeric: tabular-nums; }
.lead { margin: 0.25rem 0 0; max-width: 46rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 0.75rem; margin: 1rem 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 0.7rem 1rem;
  display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.tiles dt { color: var(--soft); }
.tiles dd { margin: 0; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.25rem;
  margin: 1rem 0; }
h2 { margin: 0 0 0.5rem; font-size: 1.1rem; }
.count { color: var(--soft); font-weight: 400; }
.note { margin: 0 0 0.75rem; color: var(--soft); }
.scroll { overflow-x: auto; }
.pictures + .scroll, .below + .scroll, .scroll + .scroll { margin-top: 0.75rem; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 500; white-space: nowrap; }
th, td { padding: 0.4rem 0.9rem 0.4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
td.rule { white-space: nowrap; }
td.observed { min-width: 11rem; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.bar { width: 40%; }
td.bar i { display: block; height: 0.8rem; margin-top: 0.35rem; border-radius: 3px; background: var(--line); }
.meter { display: block; min-width: 5rem; width: 100%; height: 0.8rem; margin: 0.35rem 0; }
.meter i { display: block; height: 100%; border-radius: 3px; background: var(--now); }
tr.own td { font-weight: 600; }
tr.own td.bar i { background: var(--now); }
td.words { overflow-wrap: anywhere; min-width: 8rem; }
td.path { overflow-wrap: anywhere; }
.badge { display: inline-block; padding: 0 0.5rem; border-radius: 6px; white-space: nowrap; font-weight: 600; }
.badge.good { background: var(--good-back); color: var(--good); }
.badge.bad { background: var(--bad-back); color: var(--bad); }
.badge.warn { background: var(--warn-back); color: var(--warn); }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.25rem 1.25rem; margin: 0; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(17rem, 100%), 1fr)); gap: 0.75rem; }
.card { border: 1px solid var(--line); border-left: 4px solid var(--line); border-radius: 8px;
  padding: 0.7rem 0.9rem; display: flex; flex-direction: column; gap: 0.35rem; min-width: 0; break-inside: avoid; }
.card.bad { border-left-color: var(--bad); }
.card.warn { border-left-color: var(--warn); }
.card .name { display: flex; gap: 0.6rem; align-items: baseline; }
.card h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
.card .type { color: var(--soft); font-size: 0.85rem; flex: none; max-width: 50%; overflow-wrap: anywhere; }
.card .badge { margin-left: auto; font-size: 0.85rem; flex: none; }
.card .problem { margin: 0; font-size: 0.9rem; overflow-wrap: anywhere; }
.card.bad .problem, .over { color: var(--bad); font-weight: 600; }
.card.warn .problem { color: var(--warn); }
.nothing { margin: 0; color: var(--soft); }
.picture { width: 100%; height: auto; display: block; overflow: visible; }
.picture .now { fill: var(--now); }
.picture .then { fill: none; stroke: var(--ink); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.picture .axis { stroke: var(--soft); stroke-width: 1; vector-effect: non-scaling-stroke; }
.picture .hit { fill: transparent; }
.picture text { fill: var(--ink); font-size: 12px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 1rem 1.5rem; }
figure { margin: 0; min-width: 0; max-width: 36rem; break-inside: avoid; }
figcaption { font-weight: 600; margin: 0 0 0.25rem; }
.below { margin: 0.25rem 0 0; color: var(--soft); font-size: 0.9rem; }
.plot { width: 100%; height: auto; display: block; }
.plot text { fill: var(--soft); font-size: 11.5px; }
.plot .title { fill: var(--ink); }
.plot .grid { stroke: var(--grid); fill: none; }
.plot .axis { stroke: var(--soft); fill: none; }
.plot .rule { stroke: var(--soft); stroke-dasharray: 5 4; fill: none; }
.plot .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke: var(--c0); }
.plot .line:hover { stroke-width: 3.5; }
.plot .band, .plot .bar, .plot .dot { fill: var(--c0); }
.plot .band { opacity: 0.22; }
.plot .bar { opacity: 0.75; }
.plot .dots { fill: none; stroke: var(--c0); stroke-linecap: round; opacity: 0.45; }
.legend { display: inline-block; margin-right: 1rem; overflow-wrap: anywhere; }
.swatch { display: inline-block; width: 1.1em; height: 0.25em; border-radius: 2px; vertical-align: 0.25em;
  margin-right: 0.4em; background: var(--c0); }
COLOURS
.matrix { width: auto; margin-bottom: 0.25rem; }
.matrix th, .matrix td { padding: 0.25rem 0.5rem; text-align: right; border: 0;
  font-variant-numeric: tabular-nums; }
.matrix th { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
.matrix thead th { vertical-align: bottom; }
.matrix td.same { outline: 1px solid var(--soft); outline-offset: -1px; }
.matrix td.none { color: var(--soft); }
.quote { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.25rem 0 1rem; padding: 0.6rem 0.9rem;
  border-left: 3px solid var(--line); font-size: 0.92rem; }
.quote b { font-weight: 400; color: var(--soft); }
h3 { font-size: 1rem; margin: 0.75rem 0 0.25rem; }
a { color: var(--c0); }
.ends { display: flex; justify-content: space-between; color: var(--soft); font-size: 0.85rem;
  font-variant-numeric: tabular-nums; }
.figures { display: flex; flex-wrap: wrap; gap: 0.1rem 1.25rem; margin: auto 0 0; font-size: 0.9rem; }
.figures div { display: flex; gap: 0.4rem; }
.figures dt, .before { color: var(--soft); }
.figures dd { margin: 0; font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: 1.1em; height: 0.8em; vertical-align: -0.05em; }
.key.now { background: var(--now); }
.key.then { border: 1.5px solid var(--ink); margin-left: 0.75rem; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.25rem 0; }
td.row, th.row { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
@media (max-width: 40rem) { main { padding: 0.75rem 0.5rem 3rem; } section { padding: 0.75rem 0.9rem; }
  header { padding: 1rem; gap: 0.9rem; } header .mark { font-size: 2.4rem; }
  .tiles { grid-template-columns: 1fr 1fr; } td.bar, th.bar { display: none; }
  .verdicts thead { display: none; } .verdicts tr { display: block; padding: 0.5rem 0; }
  .verdicts td { display: inline-block; border: 0; padding: 0.1rem 0.6rem 0.1rem 0; overflow-wrap: anywhere; }
  .verdicts td.words, .verdicts td.observed { display: block; } td.rule { white-space: normal; }
  .verdicts tr + tr { border-top: 1px solid var(--line); }
  .facts { grid-template-columns: 1fr; } .facts dd { margin-bottom: 0.5rem; } }
@media print { body { background: none; } section, header { break-inside: avoid; } }
""".replace("COLOURS", COLOURS)
