"""`python -m tests.support.durations FOLDER`: what took longest, from the JUnit reports that each part of a run left.

A test's time has its set-up in it. What is shared (a service, a JVM, a database server) counts for who came first.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

SHOWN = 20


class Part(NamedTuple):
    """A process of pytest: its tests with their seconds, and its own seconds with collecting and clearing up."""

    name: str
    seconds: float
    tests: dict[str, float]


def main(folder: Path) -> str:
    """Return how long the parts took, and the slowest tests of all of them."""
    parts = [read(path) for path in sorted(folder.glob("*.xml"))]
    slowest = sorted(((seconds, test) for part in parts for test, seconds in part.tests.items()), reverse=True)
    return "\n".join([*map(_line, parts), *(f"{seconds:7.1f} s  {test}" for seconds, test in slowest[:SHOWN])])


def read(report: Path) -> Part:
    """Return what a JUnit report says of times."""
    (suite,) = ET.parse(report).getroot().iter("testsuite")
    return Part(report.stem, float(suite.get("time", 0)), dict(_tests(suite)))


def _tests(suite: ET.Element) -> Iterator[tuple[str, float]]:
    for case in suite.iter("testcase"):
        yield f"{case.get('classname')}::{case.get('name')}", float(case.get("time", 0))


def _line(part: Part) -> str:
    tests = sum(part.tests.values())
    return f"{part.seconds:7.1f} s  {part.name}: {len(part.tests)} tests, {part.seconds - tests:.0f} s outside of them"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1])) + "\n")
