"""A world as plain data, drawn from a seed: a table, its rows, what changes them epoch by epoch, and views over it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Final

from service.protocol.relation import why_reserved
from tests.differential.excluded import Wild
from tests.differential.grammar import Writer
from tests.differential.values import TYPES, Values, quoted

Row = dict[str, str | None]
ROWS: Final = 26
BEFORE, AFTER = 5, 3
"""Epochs with changes: while history is read, and once it is."""
KEY_KINDS: Final = "ibxdoDuyzstn"
ODD_NAMES: Final = (
    "A",
    "_op",
    "_p",
    "_p_0",
    "_report",
    "select",
    "x y",
    'd"q',
    "a`b",
    "ž",
    "_vnode_",
    "OUTCOME",
    "_VNODE",
    "_tidefill_op",
    "_tidefill_report",
    "_tidefill_position",
)
"""Of these only the ones that a user may have are drawn."""


class Strategy(StrEnum):
    """How a view is filled."""

    ARRANGEMENT = "arrangement"
    NO_SHUFFLE = "no_shuffle"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Column:
    """A column of the table; `kind` is that of the grammar."""

    name: str
    kind: str
    type: str


@dataclass(frozen=True)
class Change:
    """One statement: an insert (no `id`), a delete (no `values`), or an update of the row `id`."""

    id: int | None
    values: Mapping[str, str | None] | None


@dataclass(frozen=True)
class View:
    """`SELECT id, outputs FROM t WHERE predicate`. Outputs and predicate were made of the templates `used`."""

    outputs: tuple[str, ...]
    predicate: str | None
    strategy: Strategy
    used: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The query."""
        listed = ", ".join(["id", *(f"{text} as c{place}" for place, text in enumerate(self.outputs))])
        return f"select {listed} from t" + ("" if self.predicate is None else f" where {self.predicate}")


@dataclass(frozen=True)
class World:
    """Everything that happens."""

    columns: tuple[Column, ...]
    key: tuple[tuple[str, bool], ...]
    """Names, each with whether it descends."""
    history: tuple[Change, ...]
    before: tuple[tuple[Change, ...], ...] = ()
    after: tuple[tuple[Change, ...], ...] = ()
    views: tuple[View, ...] = ()
    vnodes: int = 4
    seed: int = 0

    @property
    def ddl(self) -> str:
        """CREATE TABLE."""
        columns = ", ".join(f"{name_of(column.name)} {column.type}" for column in self.columns)
        key = ", ".join(name_of(name) + (" desc" if descends else "") for name, descends in self.key)
        return f"create table t ({columns}, primary key ({key})) with (vnode_count = {self.vnodes})"

    def states(self) -> list[Row]:
        """Return every row that ever is."""
        rows: dict[int, Row] = {}
        seen: list[Row] = []
        for change in (*self.history, *(one for epoch in (*self.before, *self.after) for one in epoch)):
            if change.values is not None:
                number = int(str(change.values["id"])) if change.id is None else change.id
                rows[number] = {**rows.get(number, {}), **change.values}
                seen.append(rows[number])
        return seen


def name_of(name: str) -> str:
    """Return a column's name as a statement has it."""
    return (
        name
        if name.isidentifier() and name.islower() and name.isascii() and name != "select"
        else '"' + name.replace('"', '""') + '"'
    )


@dataclass
class _Changes:
    """Draws changes, so that no two rows have one key."""

    random: Random
    columns: Sequence[Column]
    key: Sequence[str]
    values: Values
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    next_id: int = 1

    def draw(self) -> Change:
        verb = self.random.choice(("insert", "insert", "update", "update", "rewrite", "move", "delete"))
        if verb == "insert" or not self.rows:
            return self.insert()
        number = self.random.choice(sorted(self.rows))
        if verb == "delete":
            del self.rows[number]
            return Change(number, None)
        keys = [column for column in self.columns if column.name in self.key and column.name != "id"]
        others = [column for column in self.columns if column.name not in (*self.key, "id")]
        chosen = {"move": keys, "rewrite": others}.get(verb) or self.random.sample(others, 3)
        values = self._values(chosen)
        if self._taken({**self.rows[number], **values}, number):
            return self.insert()
        self.rows[number] = {**self.rows[number], **values}
        return Change(number, values)

    def insert(self) -> Change:
        values: Row = {}
        for _ in range(50):
            values = {**self._values(self.columns), "id": str(self.next_id)}
            if not self._taken(values, 0):
                break
        self.rows = {number: row for number, row in self.rows.items() if self._key(row) != self._key(values)}
        self.rows[self.next_id] = values
        self.next_id += 1
        return Change(None, values)

    def _values(self, columns: Sequence[Column]) -> Row:
        return {column.name: self._value(column) for column in columns if column.name != "id"}

    def _value(self, column: Column) -> str | None:
        drawn = self.values.drawn(self.random, column.kind, _shape(column.type))
        # A key is never NULL, and its values are short enough for an index.
        return drawn if column.name not in self.key or (drawn is not None and len(drawn) < 500) else self._value(column)

    def _taken(self, values: Row, number: int) -> bool:
        return any(self._key(row) == self._key(values) for other, row in self.rows.items() if other != number)

    def _key(self, row: Row) -> tuple[str | None, ...]:
        kinds = {column.name: column.kind for column in self.columns}
        # -0 is 0.
        return tuple("0" if kinds[name] in {"d", "r"} and row[name] == "-0" else row[name] for name in self.key)


def _shape(kind: str) -> tuple[int, int] | None:
    if not kind.startswith("numeric"):
        return None
    precision, scale = kind.removeprefix("numeric(").removesuffix(")").split(",")
    return int(precision), int(scale)


def _columns(random: Random, values: Values) -> list[Column]:
    columns = [Column("id", "", "integer")]
    for kind, name in TYPES.items():
        if kind == "n":
            shapes = enumerate(values.shapes(random))
            columns += [Column(f"n{place}", "n", f"numeric({digits},{scale})") for place, (digits, scale) in shapes]
        else:
            label = kind if kind.islower() else 2 * kind.lower()
            columns += [Column(f"{label}{place}", kind, name) for place in range(2)]
    return columns


@dataclass(frozen=True)
class Language:
    """What worlds are made of: templates by kind, and what of `Wild` is left out."""

    templates: Mapping[str, Sequence[str]]
    tamed: Collection[Wild] = ()


def draw(seed: int, language: Language, *, cases: int, live: bool = True) -> World:
    """Draw a world whose views have so many expressions in all."""
    random, values = Random(seed), Values(language.tamed)
    columns = _columns(random, values)
    if not random.randrange(3):
        columns = _renamed(random, columns)
    keys = random.sample([column.name for column in columns if column.kind in KEY_KINDS], random.choice((1, 1, 2, 3)))
    if not random.randrange(3) and "id" not in keys:
        keys[-1] = "id"
    changes = _Changes(random, columns, keys, values)
    history = tuple(changes.insert() for _ in range(ROWS))
    before, after = (
        tuple(tuple(changes.draw() for _ in range(random.choice((0, 1, 3)))) for _ in range(epochs if live else 0))
        for epochs in (BEFORE, AFTER)
    )
    by_kind = {kind: [name_of(column.name) for column in columns if column.kind == kind] for kind in TYPES}
    return World(
        columns=tuple(columns),
        key=tuple((name, bool(random.randrange(2))) for name in keys),
        history=history,
        before=before,
        after=after,
        views=tuple(_views(random, by_kind, language, values, cases)),
        vnodes=random.choice((1, 4, 7)),
        seed=seed,
    )


def _renamed(random: Random, columns: Sequence[Column]) -> list[Column]:
    odd = random.sample([name for name in ODD_NAMES if why_reserved(name) is None], 3)
    odd += ["a"] if "A" in odd else []
    names = dict(
        zip(random.sample([column.name for column in columns if column.name != "id"], len(odd)), odd, strict=True)
    )
    return [replace(column, name=names.get(column.name, column.name)) for column in columns]


def _views(
    random: Random, columns: Mapping[str, Sequence[str]], language: Language, values: Values, cases: int
) -> list[View]:
    kinds = [kind for kind, texts in language.templates.items() for _ in range(2 if kind in "onx" else 1) if texts]
    strategies = list(Strategy)
    random.shuffle(strategies)
    views: list[View] = []
    for place, strategy in enumerate(strategies):
        writer = Writer(random, columns, language.templates, values)
        outputs = [writer.expression(random.choice(kinds), random.choice((1, 1, 2, 3))) for _ in range(cases // 3)]
        predicate = writer.expression("o", random.choice((1, 1, 2))) if place else None
        views.append(View(tuple(outputs), predicate, strategy, frozenset(writer.used)))
    passed = tuple(name for kind in "nxjIvz" for name in columns[kind])
    views += [View(passed, _comparison(random, columns), strategy) for strategy in random.sample(strategies, 2)]
    return views


def _comparison(random: Random, columns: Mapping[str, Sequence[str]]) -> str:
    """Return a condition that the store can answer itself."""
    kind = random.choice("nnsibxoD")
    other = random.choice("nsib") if kind in "nsib" else kind
    sign = random.choice(("=", "<>", "<", "<=", ">", ">="))
    compared = f"{random.choice(columns[kind])} {sign} {random.choice(columns[other])}"
    return random.choice(
        (
            compared,
            f"not ({compared})",
            f"{compared} and {random.choice(columns['x'])} is not null",
            f"{compared} or {random.choice(columns['o'])}",
        )
    )


def literal(column: Column, text: str | None) -> str:
    """Return a value of a column as a statement has it."""
    return quoted(text, column.type)
