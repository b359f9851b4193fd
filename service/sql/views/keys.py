"""Choose the key of a view, and build its scans with the columns of that key.

Every row of a view belongs to one row of one scan. A change of that row therefore identifies the row of the view that
changes, and the view's key consists of its upstreams' keys.

With one scan, the key is the upstream's key in the same order. A key column that the query passes on unchanged is the
view's key column. Any other key column is appended to the projection as a hidden column with a reserved name.

With several scans, the whole key is hidden: first the number of the branch, then one column per key column. Branches
share such a column if type and order agree. A branch leaves NULL in columns that only other branches need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType, KeyColumn, TypeName
from service.protocol.plan import Pushdown, Stateless
from service.protocol.relation import KEY_PREFIX, Relation
from service.protocol.stage import EngineChoice
from service.sql.expressions.scalar import Scope
from service.sql.expressions.typed import SMALLINT, Typed, quoted_name
from service.sql.text.cursor import NAME_BYTES_MAX
from service.sql.views.audit import audit
from service.sql.views.backfill_order import Edges
from service.sql.views.pushdown import Condition, all_of, push_down

# Spark keeps these types as text, so only the binder knows the type.
_WITHOUT_TWIN: Final = frozenset({TypeName.TIME, TypeName.UUID, TypeName.JSONB, TypeName.INTERVAL})
_BRANCH: Final = f"{KEY_PREFIX}branch"


@dataclass(frozen=True, slots=True)
class BoundScan:
    """One occurrence of an upstream, and how its rows are transformed.

    The other fields have one entry per output of the query. `sources` has the upstream's column that is passed on
    unchanged, or None. `types` has the type if Spark cannot report it, else None. `places` has its position in the
    statement.
    """

    upstream: Relation
    query: Stateless
    sources: tuple[Column | None, ...]
    types: tuple[ColumnType | None, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundView:
    """The bound query of a view.

    The projections of all `scans` give the columns `names`. The last `hidden` of them are hidden key columns. `order`
    has the edges of the backfill order, between names of relations.
    """

    scans: tuple[BoundScan, ...]
    names: tuple[str, ...]
    hidden: int
    key: tuple[KeyColumn, ...]
    order: Edges = ()

    def by(self, engine: EngineChoice) -> "BoundView":
        """Return the view with the engine that its user chose."""
        queries = ((scan, scan.query.model_copy(update={"engine": engine})) for scan in self.scans)
        return replace(self, scans=tuple(replace(scan, query=query) for scan, query in queries))


@dataclass(frozen=True, slots=True)
class Output:
    """One output column of a SELECT."""

    name: str
    value: Typed
    number: int | None = None
    """The number of a union's branch, set for the column that contains it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One SELECT over one relation. `conditions` has the WHEREs of the logical views that it reads, then its own."""

    scope: Scope
    outputs: Sequence[Output]
    conditions: tuple[Condition, ...] = ()

    @property
    def predicate(self) -> str | None:
        """The condition that a row has to satisfy, in Spark SQL."""
        return all_of([condition.sql for condition in self.conditions])


@dataclass(frozen=True, slots=True)
class _Slot:
    """One hidden key column of a union."""

    name: str
    type: ColumnType
    descending: bool


def keyed(branch: Branch) -> BoundView:
    """Return the view of one SELECT."""
    upstream = branch.scope.relation
    passed: dict[str, str] = {}
    for output in branch.outputs:
        if output.value.column is not None:
            passed.setdefault(output.value.column.name, output.name)
    key: list[KeyColumn] = []
    hidden: list[Output] = []
    for part in upstream.key:
        label = passed.get(part.name)
        if label is None:
            column, label = upstream.column(part.name), _hidden_name(part.name, len(hidden))
            hidden.append(Output(label, Typed(quoted_name(part.name, 1), column.type, 1, column=column)))
        key.append(KeyColumn(name=label, descending=part.descending))
    every = [*branch.outputs, *hidden]
    return BoundView((_scan(branch, hidden),), tuple(output.name for output in every), len(hidden), tuple(key))


def united(branches: Sequence[Branch]) -> BoundView:
    """Return the view of several SELECTs combined by UNION ALL. The first one names the columns. Raises Invalid."""
    first = branches[0]
    check_widths(branches)
    slots: list[_Slot] = []
    filled = [_fill(slots, branch.scope.relation) for branch in branches]
    key = (KeyColumn(name=_BRANCH), *(KeyColumn(name=slot.name, descending=slot.descending) for slot in slots))
    return BoundView(
        tuple(
            _scan(branch, _placed(number, slots, filled[number], branch.scope.relation))
            for number, branch in enumerate(branches)
        ),
        (*(output.name for output in first.outputs), *(part.name for part in key)),
        len(key),
        key,
    )


def check_widths(branches: Sequence[Branch]) -> None:
    """Raise Invalid if the branches of a union have different numbers of columns."""
    for branch in branches[1:]:
        if len(branch.outputs) != len(branches[0].outputs):
            place = branch.outputs[0].value.position
            raise Invalid("each UNION query must have the same number of columns", position=place)


def _fill(slots: list[_Slot], upstream: Relation) -> Mapping[_Slot, str]:
    """Return a slot of equal type and order for each column of the key. Adds the missing slots to `slots`."""
    filled: dict[_Slot, str] = {}
    for part in upstream.key:
        kind = upstream.column(part.name).type
        fitting = (
            slot for slot in slots if slot not in filled and (slot.type, slot.descending) == (kind, part.descending)
        )
        slot = next(fitting, None)
        if slot is None:
            slot = _Slot(f"{KEY_PREFIX}{len(slots)}", kind, part.descending)
            slots.append(slot)
        filled[slot] = part.name
    return filled


def _placed(number: int, slots: Sequence[_Slot], filled: Mapping[_Slot, str], upstream: Relation) -> list[Output]:
    """Return the hidden outputs of a branch: its number, then its key in the slots."""
    placed = [Output(_BRANCH, Typed(f"cast({number} as smallint)", SMALLINT, 1), number)]
    for slot in slots:
        column = upstream.column(filled[slot]) if slot in filled else None
        text = f"cast(null as {slot.type.spark})" if column is None else quoted_name(column.name, 1)
        placed.append(Output(slot.name, Typed(text, slot.type, 1, column=column)))
    return placed


def _scan(branch: Branch, hidden: Sequence[Output]) -> BoundScan:
    upstream = branch.scope.relation
    every = [output.value for output in (*branch.outputs, *hidden)]
    names = {column.name for column in (*upstream.columns, *branch.scope.computed.values())}
    texts = [*(value.sql for value in every), *filter(None, [branch.predicate])]
    for text in texts:
        audit(text, names)
    return BoundScan(
        upstream=upstream,
        query=Stateless(
            projection=tuple(value.sql for value in every),
            predicate=branch.predicate,
            pushdown=_pushdown(branch, hidden),
            # A logical view may compute columns that this query does not read.
            computed=tuple(one for one in branch.scope.computed.values() if _named_in(texts, one.name)),
        ),
        sources=tuple(value.column for value in every),
        types=tuple(_untold(value) for value in every),
        places=tuple(value.position for value in every),
    )


def _named_in(texts: Sequence[str], name: str) -> bool:
    return any(quoted_name(name, 1) in text for text in texts)


def _pushdown(branch: Branch, hidden: Sequence[Output]) -> Pushdown | None:
    passed = push_down([output.value for output in branch.outputs], branch.conditions)
    if passed is None:
        return None
    made = (output.number if output.value.column is None else output.value.column.name for output in hidden)
    return passed.model_copy(update={"columns": (*passed.columns, *made)})


def _hidden_name(name: str, number: int) -> str:
    """Return the name of a hidden key column. It does not grow when views are stacked on views."""
    label = name if name.startswith(KEY_PREFIX) else KEY_PREFIX + name
    return label if len(label.encode()) <= NAME_BYTES_MAX else f"{KEY_PREFIX}{number}"


def _untold(value: Typed) -> ColumnType | None:
    kind = value.type
    return kind if kind is not None and (kind.unbounded or kind.name in _WITHOUT_TWIN) else None
