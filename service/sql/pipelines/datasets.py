"""Turn the definitions of a project's files into datasets: the statements of tidefill that create them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from service.domain.errors import Invalid
from service.domain.pipeline_spec import Spec
from service.domain.pipelines import Dataset
from service.protocol.quoting import quoted, quoted_text
from service.protocol.relation import RelationKind
from service.sql.parse import parse
from service.sql.pipelines.files import Defines, Definition, read
from service.sql.pipelines.meaning import Meaning, meaning_of

_KINDS = {
    Defines.MATERIALIZED_VIEW: RelationKind.MATERIALIZED_VIEW,
    Defines.STREAMING_TABLE: RelationKind.SINK,
    Defines.VIEW: RelationKind.VIEW,
    Defines.FLOW: RelationKind.SINK,
}
_NUMBERED = re.compile(r"__\d+$")
_STREAM = "a streaming table appends the rows of one relation: SELECT .. FROM STREAM x WHERE .."
_SECRET = "s3.secret.key"  # noqa: S105 - the name of an option


@dataclass(frozen=True, slots=True)
class File:
    """A file of a project, by its path from the specification, or a definition in the Python of one: at `line`."""

    path: str
    text: str
    line: int | None = None

    def place(self, position: int | None) -> str:
        """Return the path with the line of a 1-based position."""
        if self.line is not None:
            return f"{self.path}:{self.line}"
        return f"{self.path}:{self.text.count(chr(10), 0, (position or 1) - 1) + 1}"


@dataclass(frozen=True, slots=True)
class _Defined:
    """A definition with its file."""

    file: File
    definition: Definition

    @property
    def place(self) -> str:
        return self.file.place(self.definition.position)


def datasets_of(files: Iterable[File], spec: Spec) -> tuple[Dataset, ...]:
    """Return what a project defines, what is refused included. A text that defines nothing has its place as name."""
    found: list[Dataset] = []
    defined: list[_Defined] = []
    for file in files:
        was_read = read(file.text, spec.prefixes)
        defined += [_Defined(file, one) for one in was_read.definitions]
        found += _faults(file, was_read.faults)
    flows = [one for one in defined if one.definition.defines is Defines.FLOW]
    tables = [one for one in defined if one.definition.defines is not Defines.FLOW]
    streaming = {one.definition.name for one in tables if one.definition.defines is Defines.STREAMING_TABLE}
    found += [
        _dataset(one, spec, [flow for flow in flows if flow.definition.target == one.definition.name]) for one in tables
    ]
    for flow in flows:
        if flow.definition.target not in streaming:
            fault = f'no file defines a streaming table "{flow.definition.target}"'
            found.append(_refused(flow, Invalid(fault)))
    return tuple(found)


def _faults(file: File, faults: Iterable[Invalid]) -> Iterator[Dataset]:
    """Yield a dataset for each line with texts that define nothing. Its name is its place."""
    by_place: dict[str, list[str]] = {}
    for fault in faults:
        by_place.setdefault(file.place(fault.position), []).append(fault.message)
    for place, said in by_place.items():
        yield Dataset(place, RelationKind.VIEW, place, fault="; ".join(said))


def _dataset(one: _Defined, spec: Spec, flows: Sequence[_Defined]) -> Dataset:
    source = one
    try:
        if flows and one.definition.defines is Defines.STREAMING_TABLE:
            source = _only_flow(one, flows)
        return _built(one, source, spec)
    except Invalid as error:
        return _refused(source, error, one)


def _only_flow(one: _Defined, flows: Sequence[_Defined]) -> _Defined:
    if one.definition.query is not None or len(flows) > 1:
        raise Invalid("a streaming table has one query: its own, or that of one flow", position=one.definition.position)
    return flows[0]


def _refused(at: _Defined, error: Invalid, named: _Defined | None = None) -> Dataset:
    definition = (named or at).definition
    place = at.file.place(error.position or at.definition.position)
    return Dataset(definition.name, _KINDS[definition.defines], place, fault=error.message)


def _built(one: _Defined, source: _Defined, spec: Spec) -> Dataset:
    """Return the dataset. `source` has the query. Raises Invalid with a position in the file of `source`."""
    definition, query = one.definition, source.definition.query
    if query is None:
        raise Invalid("no flow inserts into this streaming table, and it has no query", position=definition.position)
    meaning = meaning_of(query, spec.prefixes)
    match definition.defines:
        case Defines.STREAMING_TABLE:
            _check_stream(meaning, spec, query.offset + 1)
            before, after = _sink(definition, meaning, spec)
        case Defines.MATERIALIZED_VIEW:
            _check_no_stream(meaning, query.offset + 1)
            before, after = _materialized(definition, meaning, spec)
        case _:
            _check_no_stream(meaning, query.offset + 1)
            columns = f" ({_names(definition.columns)})" if definition.columns else ""
            before, after = f"CREATE VIEW {quoted(definition.name)}{columns} AS {meaning.sql}", ""
    base = _base(definition, spec) if after else None
    found = Dataset(
        definition.name, _KINDS[definition.defines], one.place, meaning.reads, before, after, base, definition.notes
    )
    _check(found.created_at(1), query.offset + 1)
    return found


def _base(definition: Definition, spec: Spec) -> str:
    """Return where the first Delta table of a dataset is. Raises Invalid if it may be that of another one."""
    if _NUMBERED.search(definition.name):
        why = "a name that ends with __ and a number is that of a folder of a dataset that is built anew"
        raise Invalid(f"{why}: choose another one", position=definition.position)
    return f"{spec.storage}/{definition.name}"


def _check(statement: str, position: int) -> None:
    """Raise Invalid if tidefill cannot parse what was made of a definition."""
    try:
        parse(statement)
    except Invalid as error:
        near = "" if error.position is None else f" at {statement[error.position - 1 :][:30]!r}"
        raise Invalid(f"{error.message}{near}", position=position) from None


def _check_stream(meaning: Meaning, spec: Spec, position: int) -> None:
    if not meaning.appends or meaning.reads != meaning.streams:
        raise Invalid(_STREAM, position=position)
    if spec.storage is None:
        raise Invalid("a streaming table is a Delta table: the specification has no storage", position=position)


def _check_no_stream(meaning: Meaning, position: int) -> None:
    if meaning.streams:
        raise Invalid("only a streaming table reads a STREAM", position=position)


def _materialized(definition: Definition, meaning: Meaning, spec: Spec) -> tuple[str, str]:
    """Return the statement before and behind the text of the location. Without a place, all of it is before."""
    begun = f"CREATE MATERIALIZED VIEW {quoted(definition.name)}"
    if spec.storage is None:
        if definition.is_delta or definition.partitions:
            raise Invalid("USING and PARTITIONED BY need a storage in the specification", position=definition.position)
        return f"{begun} AS {meaning.sql}", ""
    if not meaning.reads:
        raise Invalid("a view in a lake reads a relation", position=definition.position)
    parts = f" PARTITIONED BY ({_names(definition.partitions)})" if definition.partitions else ""
    options = ", ".join(_options(spec))
    given = f" WITH ({options})" if options else ""
    return f"{begun} USING delta LOCATION ", f"{parts}{given} AS {meaning.sql}"


def _sink(definition: Definition, meaning: Meaning, spec: Spec) -> tuple[str, str]:
    parts = f", partition_by = {quoted_text(', '.join(definition.partitions))}" if definition.partitions else ""
    options = "".join(f", {one}" for one in _options(spec))
    begun = (
        f"CREATE SINK {quoted(definition.name)} AS {meaning.sql} WITH (connector = 'deltalake', type = 'append-only'"
    )
    return f"{begun}, location = ", f"{parts}{options})"


def _options(spec: Spec) -> list[str]:
    return [
        f"{name} = {f'secret {quoted(value)}' if name == _SECRET else quoted_text(value)}"
        for name, value in sorted(spec.options.items())
    ]


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))
