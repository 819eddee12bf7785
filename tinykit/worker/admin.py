"""What is known of the workers on this machine, for the command."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from tinykit import settings
from tinykit.errors import OptionError, UnknownWorkerError, WorkerError
from tinykit.progress import size_text
from tinykit.worker.launch import Launch
from tinykit.worker.places import runtime_dir
from tinykit.worker.remote import status_at
from tinykit.worker.spawning import is_free

HEADER = ("name", "pid", "state", "memory", "uptime", "clients", "running", "waiting", "served")


def every() -> list[Launch]:
    """The launches of all workers that run, by name; what dead ones have left is removed."""
    found = []
    for path in sorted(runtime_dir().glob("*.json")):
        try:
            launch = Launch.load(path)
        except (OSError, ValueError, TypeError):
            continue
        if not is_free(launch, sweep=True):
            found.append(launch)
    return sorted(found, key=lambda launch: launch.name)


def found(name: str) -> Launch:
    """The worker that a name means: all of it, or a beginning that no other has.

    Raises:
        UnknownWorkerError: there is none of that name.
        OptionError: several begin so.
    """
    launches = every()
    fitting = [one for one in launches if name and one.name.startswith(name)]
    exact = [one for one in fitting if one.name == name]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    if not fitting:
        raise _unknown(f"No worker {name!r} runs.", name, [one.name for one in launches])
    raise OptionError(
        f"There are {len(fitting)} workers whose names begin with {name!r}.",
        hint=f"Name one of: {_names(fitting)}",
        name="name",
        value=name,
    )


def to_stop() -> list[Launch]:
    """The only worker that runs, to be stopped without a name; empty if none does.

    Raises:
        OptionError: there are several.
    """
    launches = every()
    if len(launches) > 1:
        raise OptionError(
            f"There are {len(launches)} workers: {_names(launches)}.",
            hint="Name the one to stop, or stop them all: tinykit worker stop --all",
            name="name",
        )
    return launches


def _names(launches: list[Launch]) -> str:
    return ", ".join(one.name for one in launches)


def _unknown(said: str, name: str, known: list[str]) -> UnknownWorkerError:
    nearest = difflib.get_close_matches(name, known, n=3)
    asked = f"Did you mean {' or '.join(nearest)}? " if nearest else ""
    told = f"There are: {', '.join(known)}" if known else "None is there: tinykit worker list"
    return UnknownWorkerError(said, hint=asked + told, worker=name, nearest=nearest)


def answered(launch: Launch) -> dict[str, Any]:
    """What a worker says of itself.

    Raises:
        WorkerError: it does not answer.
    """
    values = status_at(launch)
    if values is None:
        raise WorkerError(
            f"The worker {launch.name} does not answer.",
            hint=f"End it: tinykit worker stop {launch.name}",
            worker=launch.name,
        )
    return values


def running() -> list[dict[str, Any]]:
    """What all workers say of themselves; of one that does not answer only its name."""
    return [status_at(launch) or {"name": launch.name, "state": "no answer"} for launch in every()]


def table(rows: list[dict[str, Any]]) -> str:
    """The workers for people."""
    if not rows:
        return "No worker runs."
    lines = [HEADER, *map(cells, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADER))]
    texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join(text.rstrip() for text in texts)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A worker as texts, one for each column of `HEADER`."""
    memory, uptime_s = row.get("memory_bytes"), row.get("uptime_s")
    counts = [str(row.get(name, "")) for name in ("clients", "running", "waiting", "served")]
    return (
        row["name"],
        str(row.get("pid", "")),
        row["state"],
        size_text(memory) if memory else "",
        "" if uptime_s is None else duration_text(uptime_s),
        *counts,
    )


def duration_text(seconds: float) -> str:
    """Seconds for people, such as `2 h 5 min` or `40 s`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def described(values: dict[str, Any]) -> str:
    """A status for people, one fact a line."""
    facts = {name: value for name, value in values.items() if name != "tag" and value is not None}
    if "memory_bytes" in facts:
        facts["memory_bytes"] = size_text(facts["memory_bytes"])
    for name in ("uptime_s", "idle_s", "idle_limit_s"):
        if name in facts:
            facts[name] = duration_text(facts[name])
    shown = {name.removesuffix("_bytes").removesuffix("_s"): value for name, value in facts.items()}
    return "\n".join(f"{name}: {value}" for name, value in shown.items())


def log_text(name: str | None, lines: int) -> str:
    """The last lines of a worker's log, which may have ended; without a name of the log written last.

    Raises:
        UnknownWorkerError: there is no log of that name.
        WorkerError: there is no log at all.
    """
    folder = Path(settings.get("home")) / "logs"
    logs = sorted(folder.glob("worker-*.log"), key=lambda path: path.stat().st_mtime)
    fitting = [path for path in logs if name is None or path.name.startswith(f"worker-{name}")]
    if name is not None and not fitting:
        names = [path.name.removeprefix("worker-").removesuffix(".log") for path in logs]
        raise _unknown(f"There is no log of a worker {name!r} in {folder}.", name, names)
    if not fitting:
        raise WorkerError(f"There is no log of a worker in {folder}.", worker=name)
    text = fitting[-1].read_text(encoding="utf-8", errors="replace")
    return "".join(line + "\n" for line in text.splitlines()[-lines:]) if lines > 0 else ""
