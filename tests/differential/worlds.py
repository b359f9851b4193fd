"""A world as plain data, drawn from a seed: a table, its rows, and views over it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from service.protocol.relation import why_reserved
from tests.differential.excluded import Wild
from tests.differential.grammar import Writer
from tests.differential.values import TYPES, Values, quoted

Row = dict[str, str | None]
ROWS: Final = 50
VIEWS: Final = 3
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


@dataclass(frozen=True)
class Column:
    """A column of the table; `kind` is that of the grammar."""

    name: str
    kind: str
    type: str


@dataclass(frozen=True)
class View:
    """`SELECT id, outputs FROM t WHERE predicate`. Outputs and predicate were made of the templates `used`."""

    outputs: tuple[str, ...]
    predicate: str | None = None
    used: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The query."""
        listed = ", ".join(["id", *(f"{text} as c{place}" for place, text in enumerate(self.outputs))])
        return f"select {listed} from t" + ("" if self.predicate is None else f" where {self.predicate}")


@dataclass(frozen=True)
class World:
    """A table with rows, whose ids count from 1, and views over it."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    views: tuple[View, ...] = ()
    seed: int = 0

    @property
    def ddl(self) -> str:
        """CREATE TABLE."""
        columns = ", ".join(f"{name_of(column.name)} {column.type}" for column in self.columns)
        return f"create table t ({columns}, primary key (id))"


def name_of(name: str) -> str:
    """Return a column's name as a statement has it."""
    return (
        name
        if name.isidentifier() and name.islower() and name.isascii() and name != "select"
        else '"' + name.replace('"', '""') + '"'
    )


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


def draw(seed: int, language: Language, *, cases: int) -> World:
    """Draw a world whose views have so many expressions in all."""
    random, values = Random(seed), Values(language.tamed)
    columns = _columns(random, values)
    if not random.randrange(3):
        columns = _renamed(random, columns)
    rows = tuple(_row(random, columns, values, number) for number in range(1, ROWS + 1))
    by_kind = {kind: [name_of(column.name) for column in columns if column.kind == kind] for kind in TYPES}
    views = tuple(_view(random, by_kind, language, values, cases // VIEWS, place) for place in range(VIEWS))
    return World(tuple(columns), rows, views, seed)


def _row(random: Random, columns: Sequence[Column], values: Values, number: int) -> Row:
    drawn = {one.name: values.drawn(random, one.kind, _shape(one.type)) for one in columns if one.name != "id"}
    return {"id": str(number), **drawn}


def _renamed(random: Random, columns: Sequence[Column]) -> list[Column]:
    odd = random.sample([name for name in ODD_NAMES if why_reserved(name) is None], 3)
    odd += ["a"] if "A" in odd else []
    names = dict(
        zip(random.sample([column.name for column in columns if column.name != "id"], len(odd)), odd, strict=True)
    )
    return [replace(column, name=names.get(column.name, column.name)) for column in columns]


def _view(
    random: Random,
    columns: Mapping[str, Sequence[str]],
    language: Language,
    values: Values,
    cases: int,
    place: int,
) -> View:
    """Draw a view. All but the first one have a condition."""
    kinds = [kind for kind, texts in language.templates.items() for _ in range(2 if kind in "onx" else 1) if texts]
    writer = Writer(random, columns, language.templates, values)
    outputs = [writer.expression(random.choice(kinds), random.choice((1, 1, 2, 3))) for _ in range(cases)]
    predicate = writer.expression("o", random.choice((1, 1, 2))) if place else None
    return View(tuple(outputs), predicate, frozenset(writer.used))


def literal(column: Column, text: str | None) -> str:
    """Return a value of a column as a statement has it."""
    return quoted(text, column.type)
