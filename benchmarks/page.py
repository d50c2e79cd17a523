"""The results of a run as Markdown: the page kept beside them, and the table in README."""

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


INSTEAD_OF = {
    "tape": ("**tape**", ""),
    "OpenAI Agents SQLiteSession": (
        "a session class (OpenAI Agents SQLiteSession)",
        "corrections that keep the original, branches, forks",
    ),
    "LangGraph SqliteSaver": (
        "a checkpointer (LangGraph SqliteSaver)",
        "messages to search and correct, merges",
    ),
    "eventsourcing, SQLite": (
        "an event-sourcing library (`eventsourcing`)",
        "message trees, context budgets, summaries",
    ),
}
"""The stores that README compares with, and what tape adds to each."""
JOBS = ("append one", "last 50")


def excerpt(report: Report) -> str:
    """Return what README shows: one store of each kind, and what tape takes for the same job."""
    jobs = report.jobs["SQLite"]
    rows = "".join(
        f"| {label} | {adds} | {' | '.join(shown_time(jobs[job][store].median) for job in JOBS)} |\n"
        for store, (label, adds) in INSTEAD_OF.items()
    )
    facts = report.conditions
    sqlite = facts["SQLite"].split(",")[0]
    return (
        f"| instead of | tape adds | append one message | read the last 50 |\n|---|---|--:|--:|\n{rows}\n"
        "Medians of one interleaved run; every store on SQLite with `synchronous=FULL` "
        f"({facts['date']}, {facts['machine']}, Python {facts['Python']}, SQLite {sqlite}).\n"
    )


def rewrite_readme(report: Report, readme: Path = README) -> None:
    """Put the excerpt between the two markers of README."""
    text = readme.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"{readme.name} has no place for the table: {BEGIN} … {END}")
    readme.write_text(f"{before}{BEGIN}\n{excerpt(report)}{END}{after}", "utf-8")
