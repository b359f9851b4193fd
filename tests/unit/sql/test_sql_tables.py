import pytest

from service.domain.errors import Invalid
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.relation import Relation
from service.sql.parse import parse
from service.sql.statements.tables import CreateTable, table_relation


def created(text: str) -> CreateTable:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return statement


def shown(relation: Relation) -> list[str]:
    return [
        f"{c.name} {c.type}{'' if c.nullable else ' not null'}{' hidden' if c.hidden else ''}" for c in relation.columns
    ]


TYPES = """create table t (id bigint primary key, n numeric(12, 2), d double precision, v character varying,
    z timestamp with time zone, y timestamp without time zone, a integer[], m numeric(5)[], j jsonb)"""


@pytest.mark.parametrize(
    ("text", "columns", "key"),
    [
        ("create table t (id int primary key)", ["id integer not null"], ["id"]),
        ("create table t (a int, b text)", ["a integer", "b text", "_row_id bigint not null hidden"], ["_row_id"]),
        (
            "create table public.T (A int NULL, b text NOT NULL, primary key (b desc, a asc))",
            ["a integer not null", "b text not null"],
            ["b desc", "a"],
        ),
        ('create table t ("A" int primary key, "b c" int)', ["A integer not null", "b c integer"], ["A"]),
        (
            TYPES,
            [
                *(
                    "id bigint not null",
                    "n numeric(12,2)",
                    "d double precision",
                    "v text",
                    "z timestamptz",
                    "y timestamp",
                ),
                *("a integer[]", "m numeric(5,0)[]", "j jsonb"),
            ],
            ["id"],
        ),
    ],
)
def test_a_table_becomes_a_relation(text: str, columns: list[str], key: list[str]) -> None:
    relation = table_relation(created(text))
    assert shown(relation) == columns
    assert [f"{part.name}{' desc' if part.descending else ''}" for part in relation.key] == key
    assert relation.name == "t"


def test_options_of_a_table() -> None:
    statement = created("create table if not exists t (a int primary key) with (vnode_count = 16)")
    assert statement.if_not_exists
    assert table_relation(statement).vnode_count == 16
    assert statement.columns == (Column(name="a", type=ColumnType.parse("integer"), nullable=False),)
    assert statement.key == (KeyColumn(name="a"),)


REFUSED = [
    ("create table t", "syntax error at end of input", 15),
    ("create table t ()", 'syntax error at or near ")"', 17),
    ("create table t (a)", 'syntax error at or near ")"', 18),
    ("create table t (a int,)", 'syntax error at or near ")"', 23),
    ("create table t (a int", "syntax error at end of input", 22),
    ("create table t (a geometry)", 'type "geometry" is not supported', 19),
    (
        "create table t (a varchar(0))",
        'type "varchar(0)" is not supported: use text without a length',
        19,
    ),
    ("create table t (a int[][])", 'type "int[][]" is not supported: arrays have one dimension', 19),
    ("create table t (a int, a text)", 'column "a" specified more than once', 24),
    ("create table t (_row_id int)", 'column name "_row_id" is reserved', 17),
    ("create table t (CTID int)", 'column name "ctid" is reserved: every Postgres table has a system column', 17),
    ("create table t (_tidefill_op int)", 'column name "_tidefill_op" is reserved', 17),
    ("create table t (_key_a int)", 'column name "_key_a" is reserved', 17),
    ("create table t (a int, primary key (b))", 'column "b" named in key does not exist', 37),
    ("create table t (a int, primary key (a, a))", 'column "a" appears twice in primary key constraint', 40),
    ("create table t (a int primary key, primary key (a))", "multiple primary keys are not allowed", 36),
    ("create table t (a int primary key, b int primary key)", "multiple primary keys are not allowed", 42),
    ("create table t (a int[] primary key)", "arrays cannot be keys", 17),
    ("create table t (a jsonb primary key)", "jsonb has an order of its own", 17),
    ("create table t (a int default now())", "DEFAULT takes a constant", 31),
    ("create table t (a int default 1 + 1)", "syntax error at or near", 33),
    ("create table t (a int default 1, primary key (a)) from s table 't'", "DEFAULT is not supported for", None),
    ("create table t (a varchar(3), primary key (a)) from s table 't'", "varchar(3) is not supported for", None),
    ("create table t (a int check (a > 1))", "CHECK is not supported", 23),
    ("create table t (a int references u)", "REFERENCES is not supported", 23),
    ("create table t (a int unique)", "UNIQUE is not supported", 23),
    ("create table t (a int generated always as identity)", "GENERATED is not supported", 23),
    ("create table t (a int, unique (a))", "UNIQUE is not supported", 24),
    ("create table t (a int, foreign key (a) references u)", "FOREIGN KEY is not supported", 24),
    ("create table t (a int, constraint c primary key (a))", "named constraints are not supported", 24),
    ('create table t (a text collate "de_DE")', "COLLATE is not supported", 24),
    (
        "create table t (a int primary key) with (bucket = 'x')",
        "unexpected options in WITH clause",
        42,
    ),
    ("create table t (a int primary key) with (vnode_count = 0)", "vnode_count is 1 to 32768", 56),
    ("create table t (a int primary key) inherits (u)", "INHERITS is not supported in CREATE TABLE", 36),
    ("create table t as select 1", "CREATE TABLE AS is not supported", 16),
    ("create table other.t (a int)", 'schema "other" does not exist', 14),
]


@pytest.mark.parametrize(("text", "message", "position"), REFUSED, ids=[text for text, _, _ in REFUSED])
def test_what_would_not_be_kept_is_refused(text: str, message: str, position: int) -> None:
    with pytest.raises(Invalid) as error:
        parse(text)
    assert message in str(error.value)
    assert error.value.position == position
