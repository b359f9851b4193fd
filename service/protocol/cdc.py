"""Define the values of CDC: what a `CDC_SCAN` reads, the state of a source, and what a worker reports about it.

A *source* is one external Postgres database with one replication slot and one publication. The tables that follow the
database share the source. The worker decodes the log once per epoch. It reads the end of the log only after it has read
the epoch's pages. So in every epoch all tables of a source show the external database at one moment, namely after the
last decoded commit. The end of that commit is the *offset*, which is stored with the epoch.

The worker reads a table's history in *splits*, which are ranges of one key column. A split is to a CDC scan what a
vnode is to other scans. Positions, actors, progress and rescaling therefore work the same way.

LSNs are texts as Postgres prints them (`16/B374D848`). Next: `workers.runners.source_scan`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import BIGINT_MAX, Bigint, Count, FragmentId, SourceId
from service.protocol.relation import Relation

SPLITS_MAX: Final = 1 << 15
"""The number of a split is stored where the number of a vnode is stored, so both have the same maximum."""

Lsn = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{1,8}/[0-9A-F]{1,8}$")]


Unkeepable = Literal["fail", "null"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class CdcSource(_Value):
    """One external database in the state that the leader last committed.

    `offset` is the end of the last decoded commit; before the first commit it is the position at which the slot was
    created. The worker drops every commit that ends at or before `offset` when it decodes the log again. `undecided`
    are the 64-bit ids of transactions that were decoded but were not yet visible in any snapshot. The worker refuses a
    page whose snapshot does not show all of them.
    """

    id: SourceId
    name: str
    slot: str
    publication: str
    offset: Lsn
    undecided: tuple[int, ...] = ()


class Split(_Value):
    """The rows whose split-column value is in `[left, right)`, as Postgres texts; None means no bound."""

    left: str | None = None
    right: str | None = None


class CdcColumn(_Value):
    """One column of a followed table.

    `name` is the column's name in tidefill. `external` is its name in the external table, and `type` is its full type
    there as `format_type` prints it.
    """

    name: str
    external: str
    type: str


class ExternalColumn(_Value):
    """What identifies a column of an external table, and the texts of its values, at one moment.

    Postgres never uses a `number` of a table again. `type` is the full type, as `CdcColumn` has it. `version` is the
    transaction that last altered the column. `sent`: the log has its values. `labels` are the values of the enums in
    its type, by their oids. `parts` are the types of the attributes of the composites in its type.
    """

    number: int
    name: str
    type: str
    version: str
    collation: str
    sent: bool
    labels: dict[str, str] | None = None
    parts: dict[str, str] | None = None


class Shape(_Value):
    """The columns of an external table at one moment, in the order of their numbers.

    `storage` changes when rows are rewritten, or the table is truncated. `digest` changes with anything in the shape.
    """

    digest: str
    storage: str
    columns: tuple[ExternalColumn, ...]

    def numbered(self, number: int) -> ExternalColumn | None:
        """Return the column with a number, or None."""
        return next((column for column in self.columns if column.number == number), None)

    def named(self, name: str) -> ExternalColumn | None:
        """Return the column with a name, or None."""
        return next((column for column in self.columns if column.name == name), None)


class Published(_Value):
    """How a publication published a table at one moment, and what identifies the table's columns.

    A later check compares two such values, to find out whether the publication stayed the same. A change that was
    undone in between would have left a gap in the log.

    `system` identifies the server (a copy of the server has the same id); None if the server does not report it.
    `table` is the oid. `publication` is the version of the catalog row that holds the publication's options. `entries`
    are the versions of the catalog rows that add the table; it is empty for a publication of all tables. `partitions`
    are the oids of the leaf partitions, each with the versions of the catalog rows that attach it.
    """

    system: str | None
    table: str
    publication: str
    entries: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    shape: Shape | None = None
    """None for a table that is followed since a release without it, until its worker has determined it."""
    end: int = 0
    """The end of the log at that moment, 0 if unknown."""


class Sweep(_Value):
    """How far a reload has removed the stored rows whose keys the external table has not.

    Stored keys are compared in the order of storage. `after` is the last compared key: the vnode, and the key's columns
    as texts. None: no key was compared yet.
    """

    after: tuple[str, ...] | None = None
    over: bool = False


class CdcScan(_Value):
    """What one followed table reads from its source.

    `splits` are in the order of their numbers, from 0; `split_column` is an external name. `total` is the external
    database's own estimate of the rows, None if it has none.

    A page may be read once every transaction before `readable_after` has ended. The table was added to the publication
    at that point, so the log need not hold all changes of older transactions. `timestamp` is the column that receives
    the commit time of a row (`INCLUDE timestamp`), or None. `published` is how the table was published when the worker
    last accepted that; None is unknown.
    """

    source: CdcSource
    external_schema: str
    external_table: str
    columns: tuple[CdcColumn, ...]
    split_column: str
    splits: tuple[Split, ...] = Field(min_length=1, max_length=SPLITS_MAX)
    readable_after: int = Field(ge=0)
    total: int | None = None
    batch_rows: int = Field(default=1000, ge=1)
    timestamp: str | None = None
    published: Published | None = None
    sweep: Sweep | None = None
    """Set for a table that is read again over its stored rows (ALTER TABLE .. RELOAD). The sweep precedes the pages."""
    reloaded_at: int = 0
    """The end of the log when the reload began. Every page shows the transactions before it."""
    unkeepable: Unkeepable = "fail"
    """Whether a value that cannot be kept breaks the table, or is stored as NULL."""
    nulled: Count = 0
    """How many values were stored as NULL since the history began."""
    broken: str | None = None
    """Why the table stopped following: the change outside, and what to do. The worker applies nothing
    to it any more.
    """
    all_columns: bool = False
    """The table was created with all columns, so the leader adds new ones. False is unknown: before its next reload."""
    note: str | None = None
    """Why the table has not all new columns of the external one. For users only."""

    def carried(self, relation: Relation) -> Relation:
        """Return the relation without columns that were added for a reload that has not begun. They are NULL."""
        names = {self.timestamp, *(column.name for column in self.columns)}
        return relation.model_copy(update={"columns": tuple(one for one in relation.columns if one.name in names)})


class CdcTableReport(_Value):
    """The state of one followed table: why it stopped for good (`broken`), or why no page can be read
    now (`waiting`). `published` is its new place in the publication, `sweep` how far its stored rows are compared, and
    `nulled` how many values were stored as NULL. None where that stays as it was.
    """

    fragment: Bigint[FragmentId]
    broken: str | None = None
    waiting: str | None = None
    published: Published | None = None
    sweep: Sweep | None = None
    nulled: Count | None = None


class SourceReport(_Value):
    """The state of a source after an epoch.

    `waiting` is why the worker read nothing from it, None if it did read. `lag_bytes` is the log that is not yet
    decoded. `retained_bytes` is the log that the slot makes the external database keep. Both are None if they could not
    be read. `changes` counts the changes decoded in this epoch. `commit_lag_ms` is the age of the last decoded commit
    when it was written.
    """

    kind: Literal["source"] = "source"
    source: Bigint[SourceId]
    offset: Lsn
    undecided: tuple[Bigint[int], ...] = ()
    waiting: str | None = None
    lag_bytes: Bigint[int] | None = None
    retained_bytes: Bigint[int] | None = None
    changes: Count = 0
    commit_lag_ms: FiniteFloat | None = None
    tables: tuple[CdcTableReport, ...] = ()


class SourceConnection(_Value):
    """How to reach a source. A worker requests it when it first needs the source, and stores it nowhere."""

    source: SourceId
    conninfo: str = Field(repr=False)


SYSTEM_POSTGRES: Final = "select system_identifier::text from pg_control_system()"
"""Query for a server's identity. Not every server answers it."""


def timeouts_postgres(*, statement: str, lock: str, idle_in_transaction: str) -> str:
    """Return the statements that set, in a session of an external server, every timeout that a login may have.

    A session is idle between epochs, so a limit of the login for idle sessions or whole transactions would end it.
    """
    return (
        f"set statement_timeout = '{statement}'; set lock_timeout = '{lock}';"
        f" set idle_in_transaction_session_timeout = '{idle_in_transaction}'; set idle_session_timeout = 0;"
        # Servers have it from Postgres 17 on.
        " select set_config('transaction_timeout', '0', false)"
        " where current_setting('transaction_timeout', true) is not null"
    )


_TYPES: Final = (
    "with recursive over (type) as (select a.atttypid union select inner_type.id from over o"
    " join pg_type t on t.oid = o.type cross join lateral (select t.typelem as id union all select t.typbasetype"
    " union all select i.atttypid from pg_attribute i where i.attrelid = t.typrelid and i.attnum > 0"
    " and not i.attisdropped union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)"
    ") inner_type where inner_type.id <> 0)"
)
"""The types within the type of column `a`: elements, base types of domains, attributes, subtypes of ranges."""
_LABELS: Final = (
    f"({_TYPES} select jsonb_object_agg(e.oid::text, e.enumlabel) from over o join pg_enum e on e.enumtypid = o.type)"
)
_PARTS: Final = (
    f"({_TYPES} select jsonb_object_agg(i.attrelid || '.' || i.attnum, i.atttypid::text) from over o"
    " join pg_type t on t.oid = o.type join pg_attribute i on i.attrelid = t.typrelid"
    " and i.attnum > 0 and not i.attisdropped)"
)
_OF_USERS: Final = "a.atttypid >= 16384"
"""Postgres's own types have lower oids, and never change. The types of other columns are not looked into: that costs
time in every epoch.
"""
_SENT: Final = "a.attgenerated = '' and coalesce(to_jsonb(t) -> 'attnames' ? a.attname::text, true)"
_STORAGE: Final = (
    "case when c.relkind = 'p' then (select md5(string_agg(l.oid || ':' || l.relfilenode, ',' order by l.oid))"
    " from pg_partition_tree(c.oid) leaf join pg_class l on l.oid = leaf.relid where leaf.isleaf)"
    " else c.relfilenode::text end"
)
_SHAPE: Final = (
    f"jsonb_build_object('storage', coalesce({_STORAGE}, ''), 'columns', (select jsonb_agg(jsonb_build_object("
    "'number', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'version', a.xmin::text,"
    f" 'collation', a.attcollation::text, 'sent', {_SENT}, 'labels', case when {_OF_USERS} then {_LABELS} end,"
    f" 'parts', case when {_OF_USERS} then {_PARTS} end) order by a.attnum)"
    " from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped))"
)


def published_postgres(version: int) -> str:
    """Return a query for an external server of `version`: which tables a publication publishes, and how.

    The parameters are the publication `$1`, the schemas `$2`, the table names `$3`, and the digests of known shapes
    `$4`. A result row has the schema, the name, the fields of `Published` except `system` and `shape`, the row filter,
    the columns, and the digest and the text of the shape, and the end of the log. The text of a known shape is NULL.
    Postgres 14 has neither row filters nor column lists, so both are NULL there. `xmin` is the version of a catalog
    row; Postgres keeps it when it freezes the row.
    """
    of_schema = ""
    if version >= 150000:
        of_schema = (
            " union all select n.oid || ':' || n.xmin::text from pg_publication_namespace n"
            " where n.pnpubid = p.oid and n.pnnspid = c.relnamespace"
        )
    return (
        "select t.schemaname, t.tablename, c.oid::text, p.oid || ':' || p.xmin::text, array("
        "select r.oid || ':' || r.xmin::text from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = c.oid"
        f"{of_schema}), array(select leaf.relid::oid || ':' || ("
        "select string_agg(i.xmin::text, ',' order by i.inhrelid) from pg_partition_ancestors(leaf.relid) a"
        " join pg_inherits i on i.inhrelid = a.relid) from pg_partition_tree(c.oid) leaf"
        " where leaf.isleaf and c.relkind = 'p'), to_jsonb(t) ->> 'rowfilter', to_jsonb(t) -> 'attnames',"
        " md5(shape.text), case when md5(shape.text) <> all ($4::text[]) then shape.text end,"
        " (pg_current_wal_insert_lsn() - '0/0')::bigint"
        " from pg_publication p join pg_publication_tables t on t.pubname = p.pubname"
        " join pg_namespace s on s.nspname = t.schemaname"
        " join pg_class c on c.relnamespace = s.oid and c.relname = t.tablename"
        f" cross join lateral (select {_SHAPE}::text as text offset 0) shape"
        " where p.pubname = $1 and (t.schemaname, t.tablename) in (select * from unnest($2::text[], $3::text[]))"
    )


def published_of(row: Sequence[Any], system: str | None, known: Mapping[str, Shape]) -> Published:
    """Return the value of a result row of `published_postgres`. `known` are the known shapes, by their digests."""
    _, _, table, publication, entries, partitions, _, _, digest, text, end = row
    shape = known[digest] if text is None else Shape.model_validate({**json.loads(text), "digest": digest})
    return Published(
        system=system,
        table=table,
        publication=publication,
        entries=tuple(entries),
        partitions=tuple(partitions),
        shape=shape,
        end=end,
    )


def lsn_of(lsn: Lsn) -> int:
    """Return an LSN as a byte position in the log. Raises ValueError where a bigint cannot have it."""
    high, low = lsn.split("/")
    if (position := (int(high, 16) << 32) | int(low, 16)) > BIGINT_MAX:
        msg = f"{lsn} is no place in a log"
        raise ValueError(msg)
    return position


def without_length(external: str) -> str:
    """Return a full type without its length or precision. A cast to it cuts off nothing where the column got wider."""
    return re.sub(r"\(\d+(,-?\d+)?\)", "", external)


def carried_postgres(value: str, external: str, kind: ColumnType) -> str:
    """Return the expression, in the external server's SQL, for a value as tidefill stores it.

    The result equals what the value's text in the log becomes. `external` is the value's full type there. A type that
    tidefill does not have becomes the text that the log has. A cast could differ: for `character(n)` it drops blanks.
    The expression fails, naming the value, on a number that does not fit; it never rounds.
    """
    if external == str(kind) and kind.name is not TypeName.NUMERIC:
        return value
    match kind.name:
        case TypeName.TEXT if not external.startswith(("text", "character varying")):
            text = f"case when {value} is null then null else format('%s', {value}) end"
            return f"({text})::text[]" if kind.array else text
        case TypeName.NUMERIC:
            # Also for an equal type, because the external one may get wider at any time.
            return fitting_postgres(value, kind)
        case TypeName.DOUBLE:
            # Cast through the text: the digits of a real give the value, its binary form would give another one.
            return f"({value})::text::{kind}"
        case _:
            return f"({value})::{kind}"


def fitting_postgres(value: str, kind: ColumnType) -> str:
    """Return an expression that casts a number, or an array of numbers, to a type.

    The expression fails with the number's text if the number does not fit exactly.
    """
    whole = f"({value})::numeric{'[]' if kind.array else ''}"
    refused = f"(({value})::text || ' does not fit {kind}')::{kind}"
    return f"case when {whole} = ({value})::{kind} then ({value})::{kind} else {refused} end"
