"""Decide what has to be done so that a service has what a project defines.

A project defines datasets. Each becomes an object of the service: a materialized view, a logical view or a sink. The
plan compares them with what the service holds. It is a function of both, so a run that was cut off is continued by
planning again. No object can be exchanged in place: one that changed is dropped and created again, after the objects
that read it were dropped, and before they are created again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from service.domain.errors import Conflict
from service.protocol.quoting import quoted_text
from service.protocol.relation import RelationKind

Reads = Mapping[str, frozenset[str]]
"""What each object reads, by name."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """What a project defines at a `place`, a file with a line.

    Its statement is `before` and `after` with a location between them, if it has a `base`: where its Delta table goes.
    `notes` say what of the definition has no effect here. With a `fault` it is refused.
    """

    name: str
    kind: RelationKind
    place: str
    reads: frozenset[str] = frozenset()
    before: str = ""
    after: str = ""
    base: str | None = None
    notes: tuple[str, ...] = ()
    fault: str | None = None

    def created_at(self, number: int) -> str:
        """Return the statement that creates it. The first Delta table is at `base`, later ones beside it."""
        if self.base is None:
            return self.before
        return f"{self.before}{quoted_text(place_of(self.base, number))}{self.after}"


def place_of(base: str, number: int) -> str:
    """Return where the table with this number, from 1 on, is."""
    return base if number == 1 else f"{base}__{number}"


def numbered(location: str, base: str) -> int | None:
    """Return the number of a table at this location, None if it is no place of `base`."""
    if location == base:
        return 1
    digits = location.removeprefix(f"{base}__")
    return int(digits) if digits != location and digits.isdecimal() and int(digits) > 1 else None


@dataclass(frozen=True, slots=True)
class Held:
    """An object that the service holds. `same` is whether it is what the project defines under its name.

    `error` is why its job failed, and `creating` whether that job still runs.
    """

    kind: RelationKind
    reads: frozenset[str] = frozenset()
    same: bool = True
    creating: bool = False
    error: str | None = None


class Action(StrEnum):
    """What happens to a dataset."""

    CREATE = "create"
    UNCHANGED = "unchanged"
    REPLACE = "replace"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to a dataset, and why."""

    dataset: Dataset
    action: Action
    why: str

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.dataset.name


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user allows: to replace what changed, and to build anew what is named (`everything`: all of it)."""

    replace: bool = False
    anew: frozenset[str] = frozenset()
    everything: bool = False


@dataclass(slots=True)
class _Planning:
    """Decides on one dataset after another, those that are read first."""

    held: Mapping[str, Held]
    own: Mapping[str, Dataset]
    asked: Asked
    decided: dict[str, Step] = field(default_factory=dict[str, Step])
    anew: set[str] = field(default_factory=set[str])
    """What is replaced because the user asked for it by name, and what reads that."""

    def decide(self, dataset: Dataset) -> None:
        action, why = self._action(dataset)
        said = "; ".join(filter(None, (why, *dataset.notes)))
        self.decided[dataset.name] = Step(dataset, action, said)

    def _action(self, dataset: Dataset) -> tuple[Action, str]:
        if fault := dataset.fault or self._fault(dataset):
            return Action.REFUSE, f"{dataset.place}: {fault}"
        there = self.held.get(dataset.name)
        if there is None:
            return Action.CREATE, ""
        change = self._change(dataset, there)
        if change is None:
            return Action.UNCHANGED, "it is being created" if there.creating else ""
        if strangers := self._strangers(dataset.name):
            readers = ", ".join(strangers)
            return Action.REFUSE, f"{change}, and {readers} reads it, which is not of this project: drop that first"
        if self.asked.replace or dataset.name in self.anew:
            return Action.REPLACE, change
        return Action.REFUSE, f"{change}: --replace drops it with what reads it, and creates it again"

    def _fault(self, dataset: Dataset) -> str | None:
        there = self.held.get(dataset.name)
        if there is not None and there.kind is not dataset.kind:
            return f'there is a {there.kind} called "{dataset.name}"'
        for name in sorted(dataset.reads):
            if name in self.own:
                if self.decided[name].action is Action.REFUSE:
                    return f'it reads "{name}", which is refused'
                if self.own[name].kind is RelationKind.SINK:
                    return f'it reads "{name}", a streaming table: that is a sink here, which nothing can read'
            elif name not in self.held:
                return f'it reads "{name}", which neither the project defines nor the service has'
        return None

    def _change(self, dataset: Dataset, there: Held) -> str | None:
        """Return why an object cannot stay as it is. None if it can."""
        replaced = [name for name in sorted(dataset.reads) if self._is_replaced(name)]
        if self.asked.everything or dataset.name in self.asked.anew:
            self.anew.add(dataset.name)
            return "it is built anew"
        if self.anew.intersection(replaced):
            self.anew.add(dataset.name)
        if there.error is not None:
            return f"it failed: {there.error}"
        if not there.same:
            return "its definition has changed"
        return f"it reads {replaced[0]}, which is replaced" if replaced else None

    def _is_replaced(self, name: str) -> bool:
        return name in self.decided and self.decided[name].action is Action.REPLACE

    def _strangers(self, name: str) -> list[str]:
        return sorted(other for other, one in self.held.items() if name in one.reads and other not in self.own)


def planned(datasets: Sequence[Dataset], held: Mapping[str, Held], asked: Asked) -> tuple[Step, ...]:
    """Return a step for each dataset, those that are read before those that read them."""
    own: dict[str, Dataset] = {}
    refused: dict[str, tuple[Dataset, str]] = {}
    for one in datasets:
        if one.name in own:
            refused[one.name] = one, f"it is defined twice: see {own[one.name].place}"
        own.setdefault(one.name, one)
    reads = {name: one.reads for name, one in own.items()}
    for name in cyclic(reads):
        refused[name] = own[name], f"it reads itself: {' -> '.join(cycle_of(name, reads))}"
    steps = {name: Step(one, Action.REFUSE, f"{one.place}: {why}") for name, (one, why) in refused.items()}
    planning = _Planning(held, own, asked, steps)
    for level in levels({name: names for name, names in reads.items() if name not in refused}):
        for name in level:
            planning.decide(own[name])
    return tuple(planning.decided.values())


def levels(reads: Reads) -> tuple[tuple[str, ...], ...]:
    """Return the names in levels: each reads only names of levels before its own, and names that are no keys.

    Names of one level are in alphabetical order. Raises Conflict if there is a cycle.
    """
    found: list[tuple[str, ...]] = []
    rest = dict(reads)
    while rest:
        level = tuple(sorted(name for name, names in rest.items() if not names & rest.keys()))
        if not level:
            raise Conflict(f"these read each other: {', '.join(sorted(rest))}")
        found.append(level)
        for name in level:
            del rest[name]
    return tuple(found)


def cyclic(reads: Reads) -> tuple[str, ...]:
    """Return the names that read themselves, directly or through others."""
    return tuple(name for name in sorted(reads) if name in _reached(name, reads))


def cycle_of(name: str, reads: Reads) -> tuple[str, ...]:
    """Return a way from a name that is in a cycle back to itself."""
    path = [name]
    while path[-1] != name or len(path) == 1:
        step = next(
            one for one in sorted(reads[path[-1]] & reads.keys()) if one == name or _returns(one, name, reads, path)
        )
        path.append(step)
    return tuple(path)


def _returns(one: str, name: str, reads: Reads, path: Sequence[str]) -> bool:
    return one not in path and name in _reached(
        one, {key: names for key, names in reads.items() if key not in path[1:]}
    )


def _reached(name: str, reads: Reads) -> set[str]:
    reached: set[str] = set()
    ahead = set(reads.get(name, ()))
    while ahead:
        reached |= ahead
        ahead = {further for one in ahead for further in reads.get(one, ())} - reached
    return reached


def to_drop(steps: Collection[Step], held: Mapping[str, Held]) -> tuple[str, ...]:
    """Return what is dropped, in an order in which nothing is dropped that another one reads."""
    replaced = {step.name for step in steps if step.action is Action.REPLACE}
    order = levels({name: held[name].reads & replaced for name in replaced})
    return tuple(name for level in reversed(order) for name in level)


def to_create(steps: Collection[Step]) -> tuple[tuple[Dataset, ...], ...]:
    """Return what is created, in levels: a view can be created when what it reads is."""
    made = {step.name: step.dataset for step in steps if step.action in {Action.CREATE, Action.REPLACE}}
    return tuple(
        tuple(made[name] for name in level) for level in levels({name: one.reads for name, one in made.items()})
    )
