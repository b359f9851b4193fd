"""Random FROMs, joins and subqueries of conditions. `stage_queries` has the SELECTs around them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

from service.protocol.relation import ROW_ID
from tests.differential.stage_scalars import NUMBERS, ORDERED, SAFE, Col, Scalars
from tests.differential.stage_values import COLUMNS, VIEWS

_OFTEN: Final = ("big", "int", "bool")
"""Kinds of which two values are often equal."""


def quoted(name: str) -> str:
    """Quote a name."""
    return f'"{name}"'


@dataclass(frozen=True)
class Query:
    """A query and the columns that it gives: names and kinds."""

    sql: str
    columns: tuple[tuple[str, str], ...]


@dataclass
class From:
    """The text of a FROM, its columns, and the names that each item has."""

    sql: str
    cols: list[Col]
    named: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    alias: str = ""
    """That of the first item."""


class Froms(Scalars, ABC):
    """FROM and WHERE from a random source."""

    def __init__(self, random: Random, *, narrow: bool = False) -> None:
        super().__init__(random, narrow=narrow)
        self.aliases = count()
        self.common: list[tuple[str, Query]] = []
        self.linear = False
        """Whether aggregates have to be sums."""

    def read_from(self, depth: int, *, most: int = 3, only: bool = False) -> From:
        """Return a FROM of one to `most` items."""
        made = self._item(depth, only=only)
        items = self.random.choices((1, 2, 3), (4, 5, 2))[0]
        for last in [at == min(items, most) for at in range(2, min(items, most) + 1)]:
            made = self._joined(made, self._item(depth - 1, only=only), last=last)
        return made

    def _item(self, depth: int, *, only: bool = False) -> From:
        alias = f"q{next(self.aliases)}"
        if self.common and self.chance(0.5) and not only:
            name, query = self.random.choice(self.common)
            return _aliased(f"{quoted(name)} {alias}", alias, query.columns)
        if depth > 0 and self.chance(0.45) and not only:
            before = len(self.common)
            text = self.with_common(depth - 1) if not self.common and self.chance(0.04) else ""
            query = self.query(depth - 1)
            query = Query(text + query.sql, query.columns)
            del self.common[before:]
            if self.chance(0.1):
                renamed = [(f"r{at}", kind) for at, (_, kind) in enumerate(query.columns)]
                return _aliased(f"({query.sql}) {alias}({', '.join(one for one, _ in renamed)})", alias, renamed)
            return _aliased(f"({query.sql}) {alias}", alias, query.columns)
        if self.chance(0.06):
            name = self.random.choice(list(VIEWS))
            return _aliased(f"{name} {alias}", alias, list(VIEWS[name][1].items()))
        free = [one for one in COLUMNS if one not in {name for name, _ in self.common}]
        name = self.random.choices(free, [1 if one == "t5" else 3 for one in free])[0]
        return _aliased(f"{name} {alias}", alias, [one for one in COLUMNS[name].items() if one[0] != ROW_ID])

    def _joined(self, left: From, right: From, *, last: bool) -> From:
        cols = left.cols + right.cols
        joins = ("join", "join", "left join", "left join", "right join", "full join")
        kind = self.random.choice(joins if self.narrowly() else (*joins, "cross", ","))
        if kind in {"cross", ","}:
            word = ", " if kind == "," and last else " cross join "
            return From(f"{left.sql}{word}{right.sql}", cols, left.named + right.named)
        both = [
            name for name in right.named[0] if sum(name in one for one in left.named) == 1 and right.named[0][name] in {
                one.get(name) for one in left.named
            }
        ]  # fmt: skip
        if both and last and self.chance(0.3):
            name = self.random.choice(both)
            found = [*cols, Col(quoted(name), right.named[0][name])] if len(left.named) == 1 else cols
            names = quoted(name) if self.chance(0.7) else ", ".join(map(quoted, both))
            return From(f"{left.sql} {kind} {right.sql} using ({names})", found, left.named + right.named)
        shared = left.named[0].keys() & right.named[0].keys()
        # The plain copy of a table without a key has its row id as a column, so two of them share one more name.
        keyless = all("t5 " in one.sql for one in (left, right))
        if both and last and len(left.named) == 1 and len(shared) == len(both) and not keyless and self.chance(0.1):
            return From(f"{left.sql} natural {kind} {right.sql}", cols, left.named + right.named)
        on = self._on(left.cols, right.cols, only_equal=kind == "full join" or self.narrowly())
        if self.chance(0.1) and kind != "full join":
            further = self._item(0)
            inner = f"({right.sql} {self.random.choice(('join', 'left join'))} {further.sql} on "
            inner += f"{self._on(right.cols, further.cols)})"
            named = left.named + right.named + further.named
            return From(f"{left.sql} {kind} {inner} on {on}", cols + further.cols, named)
        return From(f"{left.sql} {kind} {right.sql} on {on}", cols, left.named + right.named)

    def _on(self, left: Sequence[Col], right: Sequence[Col], *, only_equal: bool = False) -> str:
        pairs = [(one, two) for one in left for two in right if one.kind == two.kind and one.kind in SAFE]
        often = [(one, two) for one, two in pairs if one.kind in _OFTEN]
        pairs = often if often and self.chance(0.6) else pairs
        alike = [(one, two) for one in left for two in right if {one.kind, two.kind} <= {"big", "int", "num"}]
        texts: list[str] = []
        for _ in range(self.random.choice((1, 1, 1, 1, 1, 1, 2))):
            if (pairs or alike) and (only_equal or self.chance(0.85)):
                one, two = self.random.choice(pairs if pairs and (self.chance(0.8) or not alike) else alike)
                texts.append(f"{one.sql} = {two.sql}" if self.chance(0.5) else f"{two.sql} = {one.sql}")
            elif not only_equal:
                texts.append(self.condition([*left, *right]))
        if not only_equal and self.chance(0.12):
            texts.append(self.condition(self.random.choice((left, right, [*left, *right]))))
        if not only_equal and self.chance(0.02):
            texts.append(self.tested([*left, *right], 0))
        return " and ".join(texts) or "true"

    def filter(self, cols: Sequence[Col], depth: int, outer: Sequence[Col] = ()) -> str:
        """Return a WHERE clause, or nothing."""
        conditions = [self.condition(cols, 2) for _ in range(self.random.choice((0, 0, 0, 0, 0, 0, 1, 1, 2)))]
        if depth > 0 and self.chance(0.22):
            conditions.append(self.tested(cols, depth - 1))
            if self.chance(0.15):
                conditions.append(f"({self.condition(cols, 0)} or {self.tested(cols, depth - 1)})")
        if outer and (self.narrowly() or self.chance(0.8)):
            kinds = {one.kind for one in outer} & {one.kind for one in cols} & set(SAFE)
            if kinds:
                kind = self.random.choice(sorted(kinds))
                mine, theirs = (self.random.choice([c for c in some if c.kind == kind]) for some in (cols, outer))
                compared = "=" if self.narrowly() or self.chance(0.85) else self.compared()
                conditions.append(f"{mine.sql} {compared} {theirs.sql}")
        self.random.shuffle(conditions)
        return f" where {' and '.join(conditions)}" if conditions else ""

    def tested(self, cols: Sequence[Col], depth: int) -> str:
        """Return a condition with a subquery."""
        outer = cols if self.narrowly() or self.chance(0.7) else ()
        match self.random.randrange(10):
            case 0:
                return self._row_tested(cols, depth, outer)
            case 1:
                kind = self.kind_of(cols)
                compared = self.one_of("= any", "= any", "> any", "<= all", "<> all", "= some", "< any", "= all")
                return f"{self.value(kind, cols, 1)} {compared} ({self.plain(depth, [kind], outer=outer).sql})"
            case 2 | 3 | 4:
                made = self.read_from(depth, most=2)
                word = "not exists" if self.chance(0.4) else "exists"
                return f"{word} (select {self.one_of('1', '*', '')} from {made.sql}{self.filter(made.cols, 0, outer)})"
            case 5 | 6 | 7:
                kind = self.kind_of(cols)
                made = self.plain(depth, [kind], outer=outer) if self.chance(0.7) else self.grouped(depth, [kind])
                if self.chance(0.2):
                    return self._not_in(cols, depth)
                return f"{self.value(kind, cols, 1)} in ({made.sql})"
            case _:
                kind = self.kind_of(cols, NUMBERS)
                return f"{self.value(kind, cols, 1)} {self.compared()} {self.scalar(kind, cols, depth)}"

    def _row_tested(self, cols: Sequence[Col], depth: int, outer: Sequence[Col]) -> str:
        """Return a condition that compares a row of two values with a subquery."""
        kinds = [self.kind_of(cols) for _ in range(2)]
        values = ", ".join(self.value(kind, cols, 0) for kind in kinds)
        if self.chance(0.8):
            return f"({values}) in ({self.plain(depth, kinds, outer=outer).sql})"
        made = self.read_from(0, most=1)
        found = ", ".join(
            f"max({self.value(kind, made.cols, 0)})" if kind in ORDERED else self.literal(kind) for kind in kinds
        )
        return f"({values}) {self.compared()} (select {found} from {made.sql})"

    def _not_in(self, cols: Sequence[Col], depth: int) -> str:
        """Return a NOT IN, mostly of values that are not NULL."""
        kind = self.kind_of(cols)
        made = self.read_from(depth, most=1)
        mine, other = self.value(kind, cols, 0), self.value(kind, made.cols, 0)
        sure = (f" where {other} is not null", f"{mine} is not null and ") if self.chance(0.8) else ("", "")
        return f"{sure[1]}{mine} not in (select {other} from {made.sql}{sure[0]})"

    def scalar(self, kind: str, cols: Sequence[Col], depth: int) -> str:
        """Return a scalar subquery that gives a kind."""
        made = self.read_from(depth, most=2)
        outer = cols if self.chance(0.7) else ()
        where = self.filter(made.cols, 0, outer)
        if self.linear:
            kind = "big"
        if self.chance(0.15):
            order = f"order by {self.total(made.cols)} limit 1"
            return f"(select {self.value(kind, made.cols, 1)} from {made.sql}{where} {order})"
        return f"(select {self.aggregate(kind, made.cols)} from {made.sql}{where})"

    def total(self, cols: Sequence[Col], first: Sequence[str] = ()) -> str:
        """Return an order in which only rows that are equal in all columns tie."""
        ways = ("", "", " desc", " nulls first", " desc nulls last")
        texts = [one.sql if one.kind in SAFE else f"{one.sql}::text" for one in cols]
        rest = [one for one in texts if one not in first]
        return ", ".join(f"{one}{self.random.choice(ways)}" for one in [*first, *rest] or ["1"])

    @abstractmethod
    def with_common(self, depth: int) -> str:
        """Return a WITH, whose queries can be read from here on."""

    @abstractmethod
    def query(self, depth: int) -> Query:
        """Return a query, nested so deep at most."""

    @abstractmethod
    def plain(self, depth: int, kinds: Sequence[str] = (), *, outer: Sequence[Col] = ()) -> Query:
        """Return a SELECT of values of these kinds, or of any."""

    @abstractmethod
    def grouped(self, depth: int, kinds: Sequence[str] = ()) -> Query:
        """Return a SELECT with aggregates of these kinds, or of any."""

    @abstractmethod
    def aggregate(self, kind: str, cols: Sequence[Col]) -> str:
        """Return an aggregate of a kind."""


def _aliased(sql: str, alias: str, columns: Sequence[tuple[str, str]]) -> From:
    return From(sql, [Col(f"{alias}.{quoted(name)}", kind) for name, kind in columns], [dict(columns)], alias)
