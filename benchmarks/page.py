"""What a run found, as Markdown: the page that is kept with the results, and the part of it that README shows."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Measured, Report, shown_time

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def page(report: Report, picture: str) -> str:
    """Return everything: conditions, the plot, the table of other stores, and every figure with its bar."""
    parts = ["# What `python -m benchmarks` found\n", _conditions(report)]
    if report.series:
        parts.append(f"![What the n-th message costs]({picture})\n")
    parts += [_stores(engine, jobs) for engine, jobs in report.jobs.items()]
    for group in dict.fromkeys(figure.group for figure in report.figures):
        rows = "".join(
            f"| {one.what} | {one.value:.2f} | {one.bar} | {one.verdict} | {one.told} |\n"
            for one in report.figures
            if one.group == group
        )
        parts.append(f"## {group}\n\n| what | ratio | bar | | medians |\n|---|---|---|---|---|\n{rows}")
    return "\n".join(parts)


def _conditions(report: Report) -> str:
    facts = [f"- {name}: {value}\n" for name, value in report.conditions.items()]
    return "".join([*facts, *(f"- **not measured**: {what}\n" for what in report.missing)])


def _stores(engine: str, jobs: dict[str, dict[str, Measured]]) -> str:
    """Return the table of stores by job, in medians."""
    names = list(next(iter(jobs.values())))
    head = f"| {engine} | {' | '.join(jobs)} |\n|---{'|--:' * len(jobs)}|\n"
    rows = [f"| {name} | {' | '.join(shown_time(times[name].median) for times in jobs.values())} |\n" for name in names]
    return head + "".join(rows)


def excerpt(report: Report) -> str:
    """Return what README shows: other stores by job, and the ratios that have a row."""
    rows: dict[str, list[str]] = {}
    for figure in report.figures:
        if figure.row:
            rows.setdefault(figure.row, []).append(f"{figure.value:.2f}")
    table = "".join(f"| {row} | {' / '.join(values)} |\n" for row, values in rows.items())
    facts = report.conditions
    versions = f"Python {facts['Python']}, SQLite {facts['SQLite'].split(',')[0]}"
    where = f"Measured on {facts['date']}: {facts['machine']}, {versions}, load {facts['load']}."
    stores = [_stores(engine, jobs) for engine, jobs in report.jobs.items()]
    return "\n".join([f"{where}\n", *stores, f"| tape against hand-written code | ratio |\n|---|---|\n{table}"])


def rewrite_readme(report: Report, readme: Path = README) -> None:
    """Put the excerpt between the two markers of README."""
    text = readme.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"{readme.name} has no place for the table: {BEGIN} … {END}")
    readme.write_text(f"{before}{BEGIN}\n{excerpt(report)}{END}{after}", "utf-8")
