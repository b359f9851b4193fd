"""Following an external Postgres: what a `CDC_SCAN` reads, where a source stands, what a worker tells of it.

A *source* is one database with one replication slot and one publication, shared by the tables that follow it. Its log
is decoded once per epoch, up to a place that is asked for after the epoch's pages were read; what an epoch holds of all
its tables is therefore the external database at one moment: after the last commit that was decoded. That commit's end,
the *offset*, is stored with the epoch. A table's history is read in *splits*, ranges of one column of its key: they are
to a CDC scan what vnodes are to others, so that positions, actors, progress and a change of their number are the same.

LSNs are texts as Postgres prints them (`16/B374D848`). Next: `workers.runners.source_scan`.
"""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

from service.protocol.columns import ColumnType, TypeName
from service.protocol.ids import Bigint, Count, FragmentId, SourceId

SPLITS_MAX: Final = 1 << 15
"""A split's number is stored where a vnode's is."""

Lsn = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{1,8}/[0-9A-F]{1,8}$")]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class CdcSource(_Value):
    """One external database as the leader last committed it.

    `offset` is the end of the last commit that was decoded, at first the place at which the slot was made; what ends at
    or before it is dropped when it is decoded again. `undecided` are the transactions (64-bit ids) that were decoded
    but that no snapshot had shown yet: a page that does not show one of them is not accepted.
    """

    id: SourceId
    name: str
    slot: str
    publication: str
    offset: Lsn
    undecided: tuple[int, ...] = ()


class Split(_Value):
    """The rows whose value of the split column is in `[left, right)`; None is without a bound. Postgres texts."""

    left: str | None = None
    right: str | None = None


class CdcColumn(_Value):
    """A column of the table that follows, by its `name` there; `external` and `type` are its name and full type (as
    `format_type` prints it) in the external table.
    """

    name: str
    external: str
    type: str


class Published(_Value):
    """A table's place in a publication, so that whoever looks later knows whether it was the same all the time: what
    was changed and changed back in between would have left a gap in the log.

    `system` identifies the server (a copy of it is the same), None where it does not say. `table` is the oid;
    `publication` is the row that has the publication's options, in the version it had; `entries` are those by which the
    table is in it, each in its version, none where the publication is for all tables. `partitions` are the oids of
    those that have rows, each with the versions of the rows by which it is one.
    """

    system: str | None
    table: str
    publication: str
    entries: tuple[str, ...]
    partitions: tuple[str, ...] = ()


class CdcScan(_Value):
    """What one table follows. `splits` are in the order of their numbers, from 0; their column is `split_column`, an
    external name. `total` is the external database's own estimate of the rows, None where it has none.

    Pages may be read once every transaction before `readable_after` has ended: the table was added to the publication
    then, and of older ones the log need not hold everything. `timestamp` is the name of the column that takes the time
    of a row's commit (of `INCLUDE timestamp`), None without one. `published` is what was published then; None is not
    known.
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
    broken: str | None = None
    """Why the table no longer follows: what changed outside, and what to do. Nothing of it is applied any more."""


class CdcTableReport(_Value):
    """What there is to say of one table: why it follows no longer (for good), or why no page of it may be read now."""

    fragment: Bigint[FragmentId]
    broken: str | None = None
    waiting: str | None = None


class SourceReport(_Value):
    """Where a source stands after an epoch. `waiting` says why nothing of it was read, None where it was.

    `lag_bytes` is how much log was left undecoded, `retained_bytes` how much the slot made the external database keep;
    None where it could not be asked. `changes` were decoded in this epoch, `commit_lag_ms` is the age that the last
    decoded commit had.
    """

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
    """How to reach a source: asked for by a worker when it first needs it, and kept nowhere."""

    source: SourceId
    conninfo: str = Field(repr=False)


SYSTEM_POSTGRES: Final = "select system_identifier::text from pg_control_system()"
"""What identifies a server; not every one says it."""


def published_postgres(version: int) -> str:
    """Return a query of an external server, whose version is its own number: which of some tables (`$2` are their
    schemas, `$3` their names) the publication `$1` publishes, and how.

    A row has schema, name, what `Published` has but the system, the condition on rows, and the columns; of Postgres 14,
    which knows neither, both are NULL. A row of a catalog is known by its `xmin`, which is kept when it is frozen.
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
        " where leaf.isleaf and c.relkind = 'p'), to_jsonb(t) ->> 'rowfilter', to_jsonb(t) -> 'attnames'"
        " from pg_publication p join pg_publication_tables t on t.pubname = p.pubname"
        " join pg_namespace s on s.nspname = t.schemaname"
        " join pg_class c on c.relnamespace = s.oid and c.relname = t.tablename"
        " where p.pubname = $1 and (t.schemaname, t.tablename) in (select * from unnest($2::text[], $3::text[]))"
    )


def lsn_of(lsn: Lsn) -> int:
    """Return the place in the log that an LSN names, in bytes."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def carried_postgres(value: str, external: str, kind: ColumnType) -> str:
    """Return, as an expression of the external server, what a value becomes here: what its text in the log becomes.

    `external` is its full type there. A type that tidefill has none for is its text as the log has it, not as a cast
    would make it (of `character(n)` the cast drops blanks); a number that does not fit is refused by its name, never
    rounded.
    """
    if external == str(kind):
        return value
    match kind.name:
        case TypeName.TEXT if not external.startswith(("text", "character varying")):
            text = f"case when {value} is null then null else format('%s', {value}) end"
            return f"({text})::text[]" if kind.array else text
        case TypeName.NUMERIC:
            return fitting_postgres(value, kind)
        case TypeName.DOUBLE:
            # A real as its digits say, not as its bits do.
            return f"({value})::text::{kind}"
        case _:
            return f"({value})::{kind}"


def fitting_postgres(value: str, kind: ColumnType) -> str:
    """Return an expression that gives a number, or an array of them, its type, or fails with its text where it does not
    fit exactly.
    """
    whole = f"({value})::numeric{'[]' if kind.array else ''}"
    refused = f"(({value})::text || ' does not fit {kind}')::{kind}"
    return f"case when {whole} = ({value})::{kind} then ({value})::{kind} else {refused} end"
