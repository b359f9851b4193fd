"""Keys of every shape an order can take, and statements over them."""

from dataclasses import dataclass
from random import Random

from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import RelationId
from service.protocol.relation import Relation, RelationKind
from tests.support.model import Key, Value

DOMAINS: dict[str, tuple[Value, ...]] = {
    "bigint": (-(2**63), *range(-2, 22), 2**63 - 1),
    "text": ("", "a", "aa", "B", "b", "é", "z", "\U0001f409"),
    "double precision": (float("nan"), float("-inf"), -1.5, -0.0, 0.0, 1e-300, 2.5, float("inf")),
    "boolean": (False, True),
    "bytea": (b"", b"\x00", b"a", b"\xff"),
}


@dataclass(frozen=True)
class KeyShape:
    """(type, descending, nullable) of every key column."""

    parts: tuple[tuple[str, bool, bool], ...]

    @property
    def relation(self) -> Relation:
        columns = [Column(name=f"k{i}", type=ColumnType.parse(t), nullable=n) for i, (t, _, n) in enumerate(self.parts)]
        key = tuple(KeyColumn(name=f"k{i}", descending=d) for i, (_, d, _) in enumerate(self.parts))
        payload = (Column(name="id", type=ColumnType.parse("int")), Column(name="v", type=ColumnType.parse("int")))
        return Relation(id=RelationId(1), name="t", kind=RelationKind.TABLE, columns=(*columns, *payload), key=key)

    @property
    def domains(self) -> list[tuple[Value, ...]]:
        return [(*DOMAINS[kind], None) if nullable else DOMAINS[kind] for kind, _, nullable in self.parts]


SHAPES: tuple[KeyShape, ...] = (
    KeyShape((("bigint", False, False),)),
    KeyShape((("bigint", True, False),)),
    KeyShape((("text", False, False), ("bigint", True, False))),
    KeyShape((("bigint", False, True), ("text", True, True))),
    KeyShape((("double precision", True, True), ("boolean", False, False))),
    KeyShape((("bytea", False, True), ("double precision", False, False), ("boolean", True, True))),
)


@dataclass(frozen=True)
class Dml:
    """One statement. `key` is for inserts and moves; `pick` chooses among the alive rows, modulo their number."""

    verb: str
    key: Key = ()
    pick: int = 0
    value: int = 0


def random_dml(random: Random, shape: KeyShape) -> Dml:
    """Draw a statement; the emptying of the whole table is rare."""
    verb = random.choice(("put", "put", "put", "put", "update", "update", "move", "move", "delete", "delete_all"))
    if verb == "delete_all" and random.randrange(3):
        verb = "put"
    key = tuple(random.choice(domain) for domain in shape.domains)
    return Dml(verb, key, random.randrange(64), random.randrange(10))
