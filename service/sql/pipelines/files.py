"""Read the statements of a file in Spark's SQL: what each defines, and where its query is.

The grammar is that of Spark 4.2, with OR REFRESH and CLUSTER BY AUTO, which Databricks has. What Spark itself refuses
is refused, and so is what has no meaning here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from service.domain.errors import Invalid
from service.sql.pipelines.words import Reader, Word, statements

Prefixes = frozenset[tuple[str, ...]]
"""What may stand before a name, in lower case."""


class Defines(StrEnum):
    """What a statement defines."""

    MATERIALIZED_VIEW = "materialized view"
    STREAMING_TABLE = "streaming table"
    VIEW = "view"
    FLOW = "flow"


@dataclass(frozen=True, slots=True)
class Query:
    """A query in Spark's SQL: `text`, which begins at `offset` of its file."""

    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement. `position` is its 1-based place in the file, and `target` the table into which a flow inserts."""

    defines: Defines
    name: str
    position: int
    query: Query | None = None
    columns: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    is_delta: bool = False
    notes: tuple[str, ...] = ()
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """The definitions of a file, and the reasons why others are refused."""

    definitions: list[Definition] = field(default_factory=list[Definition])
    faults: list[Invalid] = field(default_factory=list[Invalid])


def read(text: str, prefixes: Prefixes) -> Read:
    """Return what the statements of a file define. Each error has a position in the file."""
    found = Read()
    try:
        for words in statements(text):
            try:
                found.definitions.append(_statement(text, words, prefixes))
            except Invalid as error:
                position = error.position or words[0].start + 1
                found.faults.append(Invalid(error.message, position=position))
    except Invalid as error:
        found.faults.append(error)
    return found


def own_name(parts: tuple[str, ...], prefixes: Prefixes, position: int) -> str:
    """Return a name without what stands before it. Raises Invalid if that is not the project's own schema."""
    before = tuple(part.lower() for part in parts[:-1])
    if before and before not in prefixes:
        raise Invalid(
            f"{'.'.join(parts)}: a name has no schema, or the catalog and database of the specification",
            position=position,
        )
    return parts[-1]


def _statement(text: str, words: tuple[Word, ...], prefixes: Prefixes) -> Definition:
    reader = Reader(words)
    if not reader.accept("CREATE"):
        raise Invalid(f"a project has CREATE statements only, not {words[0].text.split()[0].upper()}")
    refresh, replaces = reader.accept("OR", "REFRESH"), reader.accept("OR", "REPLACE")
    temporary = reader.accept("TEMPORARY") or reader.accept("TEMP")
    for begins, parse in _PARSERS.items():
        if reader.accept(*begins.split()):
            is_view = parse is _view
            if (replaces or temporary) and not is_view:
                raise Invalid(f"CREATE {begins} takes OR REFRESH only", position=reader.position)
            if refresh and parse is not _dataset:
                raise Invalid(f"CREATE {begins} does not take OR REFRESH", position=reader.position)
            return _placed(parse(reader, _Begun(text, begins, prefixes, words[0].start + 1)))
    word = reader.word
    raise Invalid(f"CREATE {'' if word is None else word.text.upper()} is not supported in a project")


def _placed(found: Definition) -> Definition:
    return replace(found, notes=tuple(f"{note} has no effect here" for note in found.notes))


@dataclass(frozen=True, slots=True)
class _Begun:
    """A statement whose first words are read. `begins` are those that tell what it defines."""

    text: str
    begins: str
    prefixes: Prefixes
    position: int

    def name(self, reader: Reader) -> str:
        place = reader.position
        return own_name(reader.parts(), self.prefixes, place)

    def query(self, reader: Reader) -> Query:
        place, rest = reader.position, reader.rest()
        if not rest:
            raise Invalid("a query is expected", position=place)
        return Query(self.text[rest[0].start : rest[-1].end], rest[0].start)


def _dataset(reader: Reader, begun: _Begun) -> Definition:
    """Parse a materialized view or a streaming table."""
    reader.accept("IF", "NOT", "EXISTS")
    defines = Defines.STREAMING_TABLE if begun.begins.startswith("STREAMING") else Defines.MATERIALIZED_VIEW
    found = Definition(defines, begun.name(reader), begun.position)
    if reader.word is not None and reader.word.says("("):
        raise Invalid("columns with types are not supported: cast and name them in the query", position=reader.position)
    while reader.word is not None and not reader.accept("AS"):
        found = _clause(reader, found, begun, _CLAUSES)
    if reader.word is not None:
        return replace(found, query=begun.query(reader))
    if defines is Defines.MATERIALIZED_VIEW:
        raise Invalid("a materialized view has a query: AS SELECT ..", position=reader.position)
    return found


def _clause(reader: Reader, found: Definition, begun: _Begun, known: "_Clauses") -> Definition:
    place = reader.position
    for words, parse in known.items():
        if reader.accept(*words.split()):
            return parse(reader, found)
    if reader.accept("LOCATION") or reader.accept("OPTIONS"):
        raise Invalid(f"CREATE {begun.begins} takes neither LOCATION nor OPTIONS, as in Spark", position=place)
    raise Invalid(f'AS is expected, not "{reader.advance().text}"', position=place)


def _using(reader: Reader, found: Definition) -> Definition:
    place, name = reader.position, reader.name()
    if name != "delta":
        raise Invalid(f"tables in a lake are Delta tables, not {name}: USING delta", position=place)
    return replace(found, is_delta=True)


def _partitioned(reader: Reader, found: Definition) -> Definition:
    names: list[str] = []
    place = reader.position
    for at, word in enumerate(reader.in_parentheses()):
        if at % 2 == 0 and word.is_name:
            names.append(word.text if word.quoted else word.text.lower())
        elif at % 2 == 0 or not word.says(","):
            raise Invalid("PARTITIONED BY takes names of columns", position=place)
    return replace(found, partitions=tuple(names))


def _clustered(reader: Reader, found: Definition) -> Definition:
    if not reader.accept("AUTO"):
        reader.in_parentheses()
    return replace(found, notes=(*found.notes, "CLUSTER BY"))


def _commented(reader: Reader, found: Definition) -> Definition:
    reader.string()
    return found


def _properties(reader: Reader, found: Definition) -> Definition:
    for word in reader.in_parentheses():
        if word.text.lower().startswith("pipelines."):
            raise Invalid(f"the property {word.text} is not supported", position=word.start + 1)
    return replace(found, notes=(*found.notes, "TBLPROPERTIES"))


_Clauses = Mapping[str, Callable[[Reader, Definition], Definition]]
_VIEW_CLAUSES: Final[_Clauses] = {"COMMENT": _commented, "TBLPROPERTIES": _properties}
_CLAUSES: Final[_Clauses] = {
    **_VIEW_CLAUSES,
    "USING": _using,
    "PARTITIONED BY": _partitioned,
    "CLUSTER BY": _clustered,
}


def _view(reader: Reader, begun: _Begun) -> Definition:
    """Parse a temporary view, or one that stays: both are logical views."""
    reader.accept("IF", "NOT", "EXISTS")
    found = Definition(Defines.VIEW, begun.name(reader), begun.position)
    if reader.word is not None and reader.word.says("("):
        found = replace(found, columns=_columns(reader))
    while reader.word is not None and not reader.word.says("AS"):
        found = _clause(reader, found, begun, _VIEW_CLAUSES)
    reader.expect("AS")
    return replace(found, query=begun.query(reader))


def _columns(reader: Reader) -> tuple[str, ...]:
    """Read the names of a view's columns, each with or without a comment."""
    reader.expect("(")
    names = [reader.name()]
    while not reader.accept(")"):
        if reader.accept("COMMENT"):
            reader.string()
        else:
            reader.expect(",")
            names.append(reader.name())
    return tuple(names)


def _flow(reader: Reader, begun: _Begun) -> Definition:
    """Parse a flow that appends to a streaming table."""
    name = begun.name(reader)
    if reader.accept("COMMENT"):
        reader.string()
    reader.expect("AS")
    if reader.accept("AUTO", "CDC"):
        raise Invalid("AUTO CDC is not supported: a table that follows an external one, see docs/sources.md")
    reader.expect("INSERT", "INTO")
    reader.accept("TABLE")
    target = begun.name(reader)
    reader.expect("BY", "NAME")
    return Definition(Defines.FLOW, name, begun.position, begun.query(reader), target=target)


_PARSERS: Final[Mapping[str, Callable[[Reader, _Begun], Definition]]] = {
    "MATERIALIZED VIEW": _dataset,
    "STREAMING TABLE": _dataset,
    "VIEW": _view,
    "FLOW": _flow,
}
