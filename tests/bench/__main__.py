"""`python -m tests.bench`: measure, and print figures and ratios."""

import argparse
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.bench.catching_up import catching_up
from tests.bench.clock import monotonic, wall
from tests.bench.creating_jobs import Jobs, creating_jobs, progress
from tests.bench.figures import Figure, Section, as_json, table
from tests.bench.following import following
from tests.bench.idle import idle, single_writes
from tests.bench.lake import lake
from tests.bench.loads import loads
from tests.bench.many_views import many_views
from tests.bench.measurements import backfill, latency, losing_the_worker, pausing
from tests.bench.replicas import replicas
from tests.bench.stages import stages
from tests.bench.tables import AMOUNTS, Tables
from tests.support.service import Service, data_directory, running

NAMES: Final = (
    "idle",
    "singles",
    "loads",
    "backfill",
    "latency",
    "pause",
    "kill",
    "catchup",
    "jobs",
    "progress",
    "views",
    "cdc",
    "stages",
    "replicas",
    "lake",
)


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000], help="sizes of the tables")
    add("--only", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME", help=f"of {', '.join(NAMES)}")
    add("--repeat", type=int, default=3, help="how often throughput is measured; the median counts")
    add("--jobs", type=int, default=1_000, help="how many jobs whose progress is asked for")
    add("--views", type=int, default=1_000, help="how many idle views")
    add("--amount", choices=list(AMOUNTS), default=next(iter(AMOUNTS)), help="the type of the column `amount`")
    add("--json", type=Path, metavar="FILE", help="write everything to a file as well")
    options = parser.parse_args(arguments)
    options.rows = sorted(set(options.rows))
    return options


def measure(service: Service, options: argparse.Namespace) -> tuple[list[Section], bool]:
    """Run what was asked for, in one order; return the figures, and whether everything could be measured."""
    tables, jobs = Tables(service, options.amount), Jobs(service)
    largest = options.rows[-1]
    steps: Mapping[str, Callable[[], list[Section]]] = {
        "idle": lambda: idle(service),
        "singles": lambda: single_writes(service),
        "loads": lambda: loads(service, options.rows),
        "backfill": lambda: backfill(tables, options.rows, options.repeat),
        "latency": lambda: latency(service, tables.of(largest)),
        "pause": lambda: [pausing(service, tables.of(largest))],
        "kill": lambda: [losing_the_worker(service, tables.of(largest))],
        "catchup": lambda: [catching_up(service, tables.of(largest), options.repeat)],
        "jobs": lambda: creating_jobs(service, jobs),
        "progress": lambda: progress(service, jobs, options.jobs),
        "views": lambda: many_views(service, options.views),
        "cdc": lambda: following(service, options.repeat),
        "stages": lambda: stages(service, tables, options.rows, options.repeat),
        "replicas": lambda: replicas(service),
        "lake": lambda: lake(service, tables, options.rows),
    }
    sections: list[Section] = []
    complete = True
    for name, step in steps.items():
        if name not in options.only:
            continue
        began = monotonic()
        say(f"{name} ...")
        try:
            found = step()
        except Exception as error:  # noqa: BLE001 - what can be measured is still worth measuring
            traceback.print_exc()
            found, complete = [Section(name, (Figure("failed", None, "", note=str(error)[:200]),))], False
        say(f"{table(found)}\n{name}: {monotonic() - began:.0f} s")
        sections += found
        if name == "progress" or (name == "jobs" and "progress" not in options.only):
            jobs.end()
    return sections, complete


def machine() -> Mapping[str, Any]:
    """Say where this was measured."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "processors": len(os.sched_getaffinity(0)),
        "model": model,
        "memory_gb": round(int(memory) / (1 << 20), 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": list(os.getloadavg()),
    }


def main() -> int:
    """Measure; return 0 when everything could be measured, fast or slow."""
    options = read_options()
    # The service is the benchmark's own, whatever this shell is set up to talk to.
    for name in [name for name in os.environ if name.startswith("TIDEFILL_")]:
        del os.environ[name]
    began, where = monotonic(), machine()
    with data_directory() as directory:
        service = Service(directory)
        say("starting Postgres, the service and one Spark worker")
        with running(service):
            sections, complete = measure(service, options)
            service.stop()
    processors, load = where["processors"], where["load_before"][0]
    sys.stdout.write(
        f"\n{where['model']}, {processors} processors, {where['memory_gb']} GB; load before: {load:.1f};"
        f" {wall():%Y-%m-%d}; {monotonic() - began:.0f} s\n\n{table(sections)}\n"
    )
    if options.json is not None:
        document = {
            "at": wall().isoformat(),
            "machine": where,
            "options": {name: value for name, value in vars(options).items() if name != "json"},
            "sections": as_json(sections),
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if complete else 1


def say(text: str) -> None:
    """Tell the person who waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


if __name__ == "__main__":
    sys.exit(main())
