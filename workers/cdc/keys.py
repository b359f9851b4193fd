"""Build the SQL queries on an external table: a page's upper key, a page, the regions of keys, single rows. Pure.

The external server defines the order of keys, by the index on them and its collation. It determines a page's upper key,
and also whether a change's key was read. So one rule holds for all types, and the worker need not know the other
server's locale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.protocol.cdc import CdcColumn, CdcScan, Split, carried_postgres
from service.protocol.columns import ColumnType
from service.protocol.ids import Epoch
from service.protocol.kept import or_null_postgres
from service.protocol.plan import VnodePosition
from service.protocol.quoting import quoted, quoted_text
from service.protocol.relation import Relation
from service.protocol.vnodes import vnode_postgres
from workers.backfill.order import Position

BEYOND = 0
"""Region of keys that were not read yet. A later page has them."""
SETTLED = 1
"""Region of keys that were read in an earlier epoch."""
FRESH = 2
"""First region of keys that were read in this epoch: actor n has the region `FRESH + n`."""


@dataclass(frozen=True, slots=True)
class ExternalKey:
    """A column of the external key. `collation` is quoted and qualified. None for a type without collations."""

    name: str
    type: str
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """An external table, and the relation that follows it.

    `partitioned`: its partitions have the rows. `oid` is 0 until the table was looked up in the external catalog.
    """

    relation: Relation
    scan: CdcScan
    key: tuple[ExternalKey, ...]
    partitioned: bool = False
    oid: int = 0

    @property
    def over_stored(self) -> bool:
        """Whether its history is read over stored rows. A table in a lake is emptied first."""
        return self.scan.sweep is not None and self.relation.lake is None

    @property
    def named(self) -> tuple[str, str]:
        """Schema and name."""
        return self.scan.external_schema, self.scan.external_table

    @property
    def name(self) -> str:
        """The qualified name, quoted."""
        return f"{quoted(self.scan.external_schema)}.{quoted(self.scan.external_table)}"

    @property
    def rows(self) -> str:
        """The FROM item. It excludes the rows of tables that inherit without being partitions."""
        return f"{self.name} t" if self.partitioned else f"only {self.name} t"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of keys: those of a split, `[left, right)`, up to and including `upto`. None: the whole split."""

    split: Split
    upto: Position | None = None


def stretches(splits: Sequence[Split], positions: Mapping[int, VnodePosition]) -> list[Stretch]:
    """Return the key ranges that were read.

    Adjacent completed splits are merged, so that there are about as many ranges as actors, not as splits.
    """
    found: list[Stretch] = []
    for number, split in enumerate(splits):
        position = positions.get(number)
        if position is None:
            continue
        last = found[-1] if found else None
        joined = last is not None and last.upto is None and last.split.right is not None
        if last is not None and joined and position.key is None and last.split.right == split.left:
            found[-1] = Stretch(Split(left=last.split.left, right=split.right))
        else:
            found.append(Stretch(split, position.key))
    return found


def bound_query(table: ExternalTable, split: Split, after: Position | None, rows: int) -> str:
    """Return the query for the last of the next `rows` keys of a split, as texts. It has no row if fewer are left."""
    texts = ", ".join(f"b.{quoted(part.name)}::text" for part in table.key)
    # Only the last key is converted to texts. The server skips the others in the index, and never more than one page.
    return (
        f"select {texts} from (select {_key(table)} from {table.rows} where {_left(table, split, after)}"
        f" order by {_key(table)} limit 1 offset {rows - 1}) b"
    )


def page_query(
    table: ExternalTable, split: Split, after: Position | None, upto: Position | None, *, epoch: Epoch
) -> str:
    """Return the query for a page's rows as the state store has them: vnode, columns, epoch. They are in key order."""
    end = "" if upto is None else f" and {_compared(table, '<=', upto)}"
    where = f"{_left(table, split, after)}{end}"
    return (
        f"select {vnode(table)}, {columns(table)}, {epoch}::bigint from {table.rows} where {where}"
        f" order by {_key(table)}"
    )


def rows_query(table: ExternalTable) -> str:
    """Return the query for the rows of keys: the key's number, from 1 on, and then the columns as texts.

    It has one parameter for each column of the key: an array of texts.
    """
    texts = ", ".join(f"({value})::text" for value in _values(table))
    same = " and ".join(f"t.{quoted(part.name)} = k.{quoted(part.name)}" for part in table.key)
    return f"select k.ord, {texts} from {table.rows} join ({_unnested(table)}) k on {same}"


def present_query(table: ExternalTable) -> str:
    """Return the query for the numbers of the keys that exist. Parameters and numbers are as in `rows_query`."""
    same = " and ".join(f"t.{quoted(part.name)} = k.{quoted(part.name)}" for part in table.key)
    return f"select k.ord from {table.rows} join ({_unnested(table)}) k on {same}"


def regions_query(table: ExternalTable, settled: Sequence[Stretch], fresh: Mapping[int, Sequence[Stretch]]) -> str:
    """Return the query for the regions of keys, without those in `BEYOND`.

    Parameters and key numbers are those of `rows_query`.
    """
    cases = [(SETTLED, settled), *((FRESH + actor, read) for actor, read in fresh.items())]
    region = "".join(
        f" when {' or '.join(_within(table, stretch) for stretch in read)} then {number}"
        for number, read in cases
        if read
    )
    keys = f"select ord, case{region} else {BEYOND} end as region from ({_unnested(table)}) t"
    return f"select ord, region from ({keys}) r where region > {BEYOND}"


def keyed(table: ExternalTable, key: Position) -> str:
    """Return a key as users see it in messages."""
    return f"({', '.join(part.name for part in table.key)})=({', '.join(str(text) for text in key)})"


def columns(table: ExternalTable) -> str:
    """Return the expressions of the relation's columns, in its order and types."""
    return ", ".join(_values(table))


def vnode(table: ExternalTable) -> str:
    """Return the expression of a row's vnode. The external server computes it, so that Python handles no row."""
    external = {column.name: column.external for column in table.scan.columns}
    key = [
        (f"t.{quoted(external[part.name])}::{kind}", kind)
        for part, kind in zip(table.relation.key, table.relation.key_types, strict=True)
    ]
    return vnode_postgres(key, table.relation.vnode_count)


def _values(table: ExternalTable) -> list[str]:
    kinds = {column.name: column.type for column in table.relation.columns}
    values = {column.name: _value(table, column, kinds[column.name]) for column in table.scan.columns}
    if table.scan.timestamp is not None:
        # The commit time of a history row is unknown, so its timestamp is the time at which it was read.
        values[table.scan.timestamp] = "transaction_timestamp()"
    return [f"({values[column.name]})::{column.type}" for column in table.relation.columns]


def _value(table: ExternalTable, column: CdcColumn, kind: ColumnType) -> str:
    value = f"t.{quoted(column.external)}"
    carried = carried_postgres(value, column.type, kind)
    if table.scan.unkeepable == "fail" or any(part.name == column.name for part in table.relation.key):
        return carried
    return or_null_postgres(value, f"({carried})::{kind}", kind, table.relation.id)


def _key(table: ExternalTable) -> str:
    """Return the key's columns, qualified so that ORDER BY cannot mean an output column of the same name."""
    return ", ".join(_named(part) for part in table.key)


def _named(part: ExternalKey) -> str:
    return f"t.{quoted(part.name)}"


def _left(table: ExternalTable, split: Split, after: Position | None) -> str:
    conditions = _in_split(table, split)
    if after is not None:
        conditions.append(_compared(table, ">", after))
    return " and ".join(conditions) or "true"


def _within(table: ExternalTable, stretch: Stretch) -> str:
    conditions = _in_split(table, stretch.split)
    if stretch.upto is not None:
        conditions.append(_compared(table, "<=", stretch.upto))
    return f"({' and '.join(conditions) or 'true'})"


def _in_split(table: ExternalTable, split: Split) -> list[str]:
    part = next((part for part in table.key if part.name == table.scan.split_column), None)
    assert part is not None, "splits are ranges of a column of the key"
    bounds = ((">=", split.left), ("<", split.right))
    return [f"{_named(part)} {by} {_literal(bound, part)}" for by, bound in bounds if bound is not None]


def _compared(table: ExternalTable, operator: str, position: Position) -> str:
    values = [_literal(text, part) for text, part in zip(position, table.key, strict=True)]
    if len(values) == 1:
        return f"{_key(table)} {operator} {values[0]}"
    return f"({_key(table)}) {operator} ({', '.join(values)})"


def _literal(text: str | None, part: ExternalKey) -> str:
    assert text is not None, "a key has no NULL"
    return f"{quoted_text(text)}::{part.type}"


def _unnested(table: ExternalTable) -> str:
    """Return the query for the keys in the parameters, with the types and collations of the key's columns."""
    places = [f"k{number}" for number in range(len(table.key))]
    arrays = ", ".join(f"${number}::text[]" for number in range(1, len(places) + 1))
    values = ", ".join(
        f"{place}::{part.type}{'' if part.collation is None else f' collate {part.collation}'} as {quoted(part.name)}"
        for place, part in zip(places, table.key, strict=True)
    )
    return f"select ord, {values} from unnest({arrays}) with ordinality as u({', '.join(places)}, ord)"
