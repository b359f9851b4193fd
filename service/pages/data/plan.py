"""The lines of EXPLAIN as a picture: each stage is a box, and an edge leads to it from what it reads. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.pages.data.graph import NAME_MAX
from service.pages.layout import HEIGHT, WIDTH, layout

FREE: Final = "__explained"
"""The name under which a view that exists is explained."""
_STAGE: Final = re.compile(r"[├└]─StreamStage \{ (?P<facts>.*) \}$")
_INPUTS: Final = re.compile(r"^[│ ]*(?:input|\w+ join): (?P<inputs>.*)$")
_CREATE: Final = re.compile(
    r"""^\s*create\s+materialized\s+view\s+(?:if\s+not\s+exists\s+)?(?:public\s*\.\s*)?(?:"(?:[^"]|"")+"|\w+)""",
    re.IGNORECASE,
)
_ROOT: Final = re.compile(r"StreamMaterialize \{ name: (?P<name>.*?), columns: ")


@dataclass(frozen=True, slots=True)
class PlanBox:
    """A relation, or a stage with its operator and its engine."""

    name: str
    short: str
    note: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The picture of a plan."""

    boxes: tuple[PlanBox, ...]
    paths: tuple[str, ...]
    width: int
    height: int
    box_width: int = WIDTH
    box_height: int = HEIGHT


def explained(statement: str) -> str | None:
    """Return the EXPLAIN of the statement that made a view, under a name that is free; None for other statements."""
    renamed, found = _CREATE.subn(f'CREATE MATERIALIZED VIEW "{FREE}"', statement, count=1)
    return f"EXPLAIN {renamed}" if found else None


def plan(lines: Sequence[str]) -> Plan | None:
    """Return the picture of a plan; None if the lines are those of no materialized view."""
    if not lines or not _ROOT.match(lines[0]):
        return None
    notes: dict[str, str] = {}
    edges: list[tuple[str, str]] = []
    target = None
    for line in lines[1:]:
        stage, inputs = _STAGE.match(line), _INPUTS.match(line)
        if stage is not None:
            target = _fact(stage["facts"], "target")
            operator, engine = (_fact(stage["facts"], name) for name in ("operator", "engine"))
            notes[target] = f"{operator}, engine {engine}"
        elif inputs is not None and target is not None:
            edges += [(_input(part), target) for part in inputs["inputs"].split("; ")]
    nodes = list(dict.fromkeys([one for edge in edges for one in edge] + list(notes)))
    shape = layout(nodes, edges)
    boxes = tuple(PlanBox(at.key, _short(at.key), notes.get(at.key, "relation"), at.x, at.y) for at in shape.placed)
    return Plan(boxes, shape.paths, shape.width, shape.height)


def _input(text: str) -> str:
    """Return the relation of an input: its name is before its alias and a comma."""
    return re.sub(r"(, driver)?(, about [\d,]+ rows?)?$", "", text).rpartition(" ")[0] or text


def _fact(facts: str, name: str) -> str:
    found = re.search(rf"(?:^|, ){name}: (.*?)(?=, \w+: |$)", facts)
    return "" if found is None else found[1]


def _short(name: str) -> str:
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 1]}…"
