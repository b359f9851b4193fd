"""Random queries of the whole grammar that stages maintain.

Where a query's rows depend on an order, the order is total: all columns of the FROM end it. Rows that are equal in all
of them may stand for each other.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tests.differential.stage_froms import Query, quoted
from tests.differential.stage_scalars import ORDERED, SAFE, Col
from tests.differential.stage_windows import Windows

_NAMES: Final = ("a", "b", "c", "k", "v", "Odd name", "é", "id", "x y", "n", "s", "value", "rank")

LEAST: Final = ("min({it})", "max({it})")
LINEAR: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "big": ("count(*)", "count(*)", "count({it})", "count({any})", "sum({int})"),
        "num": ("sum({num})",),
        "dbl": ("sum({dbl})", "sum({dbl})", "avg({dbl})"),
        "bool": ("bool_and({bool})", "bool_or({bool})", "every({bool})"),
        "number": (
            "avg({int})", "avg({num})", "sum({big})", "stddev({int})", "var_pop({num})", "stddev_pop({num})",
            "sum({number})", "avg({number})", "var_samp({number})", "variance({big})", "stddev_samp({number})",
        ),
        # Of equal floats near 1e150 Postgres's own deviation is their rounding, and not 0.
        "approx": (
            "sum({flt})", "avg({flt})", "stddev({real})", "variance({dbl})", "stddev({dbl})", "avg({real})",
            "sum({real})",
        ),
    }
)  # fmt: skip
"""Aggregates that are sums."""
AGGREGATES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "big": (
            *LINEAR["big"], "count(distinct {it})", "sum(distinct {int})", "min({big})", "max({big})", "bit_or({big})",
            "count(distinct ({it}, {int}))", "bit_xor({big})",
        ),
        "int": (*LEAST, "bit_and({int})", "mode() within group (order by {int})",
                "percentile_disc(0.5) within group (order by {int})"),
        "num": ("sum(distinct {num})", *LINEAR["num"], *LEAST, "percentile_disc(0.3) within group (order by {num})"),
        "dbl": (*LINEAR["dbl"], *LEAST, "percentile_cont(0.5) within group (order by {dbl})"),
        "bool": LINEAR["bool"],
        "txt": (
            "string_agg(distinct {it!}, '-' order by {it!})", "string_agg({it!}, ',' order by {it!} desc)", *LEAST,
            "mode() within group (order by {txt})", "(array_agg({it!} order by {it!} desc nulls last))[1]",
        ),
        "uid": ("(array_agg({it!} order by {it!}))[1]",),
        "number": (*LINEAR["number"], "avg(distinct {int})", "var_pop(distinct {num})"),
        "approx": (*LINEAR["approx"], "covar_pop({int}::float8, {int}::float8)"),
        "list": ("array_agg({int!} order by {int!})", "array_agg(distinct {date!} order by {date!})",
                 "jsonb_agg({txt!} order by {txt!})", "array_agg({num!} order by {num!} desc)"),
    }
)  # fmt: skip
"""Aggregates of a kind; others have only `LEAST`."""


class Queries(Windows):
    """Queries from a random source."""

    def drawn(self) -> str:
        """Return a query."""
        text = self.with_common(1) if self.chance(0.2) else ""
        made = self.query(self.random.choice((1, 1, 2, 2, 3)), top=True).sql
        return f"{text}{made}"

    def with_common(self, depth: int) -> str:
        """Return a WITH, whose queries can be read from here on."""
        texts: list[str] = []
        free = [one for one in ("w", "W", "t1", "u", "q") if one not in {name for name, _ in self.common}]
        for name in self.random.sample(free, min(self.random.choice((1, 1, 2)), len(free))):
            shared = self.query(depth)
            columns, listed = shared.columns, ""
            if self.chance(0.2):
                columns = tuple((f"c{at}", kind) for at, (_, kind) in enumerate(columns))
                listed = f"({', '.join(one for one, _ in columns)})"
            how = self.one_of("", "", "materialized ", "not materialized ")
            texts.append(f"{quoted(name)}{listed} as {how}({shared.sql})")
            self.common.append((name, Query(shared.sql, columns)))
        return f"with {', '.join(texts)} "

    def query(self, depth: int, *, top: bool = False) -> Query:
        """Return a query, nested so deep at most. Only one that is not nested gives kinds that cannot be compared."""
        kinds = [self.random.choice(SAFE) for _ in range(self.random.randrange(1, 4))]
        match self.random.randrange(20):
            case 0 | 1 | 2 | 3:
                return self.plain(depth, top=top)
            case 4 | 5 | 6 | 7 | 8:
                return self.grouped(depth, top=top)
            case 9 | 10:
                return self.windows(depth)
            case 11 | 12:
                return self.top_n(depth)
            case 13 | 14:
                return self.limited(depth, kinds)
            case 15:
                return self.distinct_on(depth)
            case 16:
                return self.plain(depth, kinds, distinct=True)
            case _:
                return self.combined(depth, kinds)

    def plain(
        self,
        depth: int,
        kinds: Sequence[str] = (),
        *,
        outer: Sequence[Col] = (),
        distinct: bool = False,
        top: bool = False,
    ) -> Query:
        """Return a SELECT of values of these kinds, or of any."""
        made = self.read_from(depth)
        where = self.filter(made.cols, depth, outer)
        if not kinds and len(made.named) == 1 and self.chance(0.08):
            return Query(
                f"select {self.one_of('*', made.alias + '.*')} from {made.sql}{where}", tuple(made.named[0].items())
            )
        wanted = list(kinds) or [self.kind_of(made.cols) for _ in range(self.random.randrange(1, 5))]
        if top and not kinds and self.chance(0.2):
            wanted.append(self.random.choice(("number", "approx", "list", "iv", "json", "ints")))
        values = [self.value(kind, made.cols) for kind in wanted]
        if not kinds and depth > 0 and self.chance(0.25):
            wanted.append("big")
            values.append(self.scalar("big", made.cols, depth - 1))
        if not kinds and depth > 0 and self.chance(0.12):
            tested = self.tested(made.cols, depth - 1)
            wanted.append(self.one_of("bool", "int"))
            values.append(f"({tested})" if wanted[-1] == "bool" else f"case when {tested} then 1 else 2 end")
        word = "distinct " if distinct else ""
        some = self._some(wanted) if not kinds else ""
        return self._selected(f"select {word}", values, wanted, f" from {made.sql}{where}{some}")

    def _selected(self, begin: str, values: Sequence[str], kinds: Sequence[str], end: str) -> Query:
        names = self.random.sample(_NAMES, len(values))
        items = [f"{value} as {quoted(name)}" for value, name in zip(values, names, strict=True)]
        return Query(f"{begin}{', '.join(items)}{end}", tuple(zip(names, kinds, strict=True)))

    def aggregate(self, kind: str, cols: Sequence[Col]) -> str:
        """Return an aggregate of a kind."""
        forms = AGGREGATES.get(kind, LEAST)
        if self.linear:
            forms = LINEAR.get(kind, ("count(*)",))
        text = self.filled(self.form(forms), self.kind_of(cols) if kind in {"big", "list"} else kind, cols, 1)
        few = not text.endswith("]") and self.chance(0.2)
        return f"{text} filter (where {self.condition(cols)})" if few else text

    def grouped(self, depth: int, kinds: Sequence[str] = (), *, top: bool = False) -> Query:
        """Return a SELECT with aggregates."""
        made = self.read_from(depth)
        where = self.filter(made.cols, depth)
        number = self.random.choice((0, 1, 1, 1, 2, 3))
        key_kinds = [self.kind_of(made.cols) for _ in range(number)]
        keys = [self.value(kind, made.cols, 1) for kind in key_kinds]
        wanted: list[str] = []
        values: list[str] = []
        more = ("number", "approx", "list") if top else ()
        # Postgres takes a constant that stands twice for the key of a grouping set once.
        self.linear = (
            bool(keys) and all('"' in one for one in keys) and LINEAR.keys() >= set(kinds) and self.chance(0.12)
        )
        sets = self.linear
        for kind in kinds or [None] * self.random.randrange(1, 5):
            places = [at for at, one in enumerate(key_kinds) if kind in {one, None}]
            if places and self.chance(0.5):
                at = self.random.choice(places)
                wanted.append(key_kinds[at])
                values.append(keys[at])
                continue
            free = (*ORDERED, "big", "num", "bool", "uid", *more, *more)
            if self.linear:
                free = tuple(LINEAR)
            wanted.append(kind or self.random.choice([one for one in free if top or one in SAFE]))
            values.append(self._over_groups(wanted[-1], made.cols, list(zip(keys, key_kinds, strict=True))))
        having = self._having(made.cols, depth)
        group = self._grouping_sets(keys) if sets else self._group_by(keys, values)
        if sets and not kinds and self.chance(0.5):
            wanted.append("int")
            values.append(f"grouping({', '.join(keys[: self.random.randrange(1, 3)])})")
        if not kinds and self.chance(0.12):
            over = self.aggregate("big", made.cols)
            values.append(self.one_of(f"rank() over (order by {over})", f"dense_rank() over (order by {over} desc)"))
            wanted.append("big")
        self.linear = False
        distinct = "distinct " if self.chance(0.08) and set(wanted) <= set(SAFE) else ""
        end = f" from {made.sql}{where}{group}{having}{'' if kinds else self._some(wanted)}"
        return self._selected(f"select {distinct}", values, wanted, end)

    def _having(self, cols: Sequence[Col], depth: int) -> str:
        if self.chance(0.85):
            return ""
        if depth > 0 and self.chance(0.3):
            return f" having {self.aggregate('big', cols)} <= {self.scalar('big', (), depth - 1)}"
        kind = "big" if self.linear else self.random.choice(("big", "big", "num", "txt"))
        return f" having {self.aggregate(kind, cols)} {self.compared()} {self.literal(kind)}"

    def _some(self, kinds: Sequence[str]) -> str:
        """Return ORDER BY of all columns with LIMIT, or nothing."""
        if not set(SAFE).issuperset(kinds) or self.chance(0.9):
            return ""
        order = self.total([Col(str(at), kind) for at, kind in enumerate(kinds, 1)])
        return f" order by {order}{self.one_of(' limit 2', ' limit 1 offset 1', ' offset 1')}"

    def _over_groups(self, kind: str, cols: Sequence[Col], keys: Sequence[tuple[str, str]]) -> str:
        found = self.aggregate(kind, cols)
        if self.chance(0.15) and kind == "big":
            return f"coalesce({found}, 0) + {self.aggregate('big', cols)}"
        if self.chance(0.1) and kind == "num":
            return f"({found} - {self.aggregate('num', cols)})"
        same = [key for key, one in keys if one == kind]
        if keys and self.chance(0.1):
            return self.value(kind, [Col(f"({key})", one) for key, one in keys], 1)
        if same and self.chance(0.1):
            return f"coalesce({found}, {self.random.choice(same)})"
        return found

    def _group_by(self, keys: Sequence[str], values: Sequence[str]) -> str:
        if not keys:
            return self.one_of("", "", " group by ()")
        items = [
            str(values.index(key) + 1) if key in values and self.chance(0.3) else key for key in dict.fromkeys(keys)
        ]
        return f" group by {', '.join(items)}"

    def _grouping_sets(self, keys: Sequence[str]) -> str:
        every = ", ".join(dict.fromkeys(keys))
        return self.one_of(
            f" group by rollup ({every})",
            f" group by cube ({every})",
            f" group by grouping sets (({every}), ({keys[0]}), ())",
            f" group by grouping sets (({every}), ({keys[0]}))",
            f" group by {keys[0]}, rollup ({every})",
            f" group by grouping sets (rollup ({every}), ({keys[-1]}))",
        )

    def windows(self, depth: int) -> Query:
        """Return a SELECT with window functions."""
        made = self.read_from(depth, most=2)
        where = self.filter(made.cols, depth)
        wanted = [self.kind_of(made.cols) for _ in range(self.random.randrange(3))]
        values = [self.value(kind, made.cols, 1) for kind in wanted]
        part = self.part(made.cols)
        for number in range(self.random.choice((1, 1, 2))):
            there = part if self.chance(0.7) else self.part(made.cols)
            text, kind = self.window(made.cols, there, by_row=number == 0)
            values.append(text)
            wanted.append(kind)
        named = ""
        if part and self.chance(0.2):
            values, named = [one.replace(f"over ({part})", "over w") for one in values], f" window w as ({part})"
        return self._selected("select ", values, wanted, f" from {made.sql}{where}{named}")

    def top_n(self, depth: int) -> Query:
        """Return the first rows of each partition."""
        made = self.read_from(depth, most=2)
        where = self.filter(made.cols, depth)
        wanted = [self.kind_of(made.cols) for _ in range(self.random.randrange(1, 4))]
        values = [self.value(kind, made.cols, 1) for kind in wanted]
        first = [self.value(self.kind_of(made.cols), made.cols, 0)]
        part = self.part(made.cols)
        ranks = f"rank() over ({part}order by {first[0]})"
        values.append(self.one_of(f"row_number() over ({part}order by {self.total(made.cols, first)})", ranks))
        inner = self._selected("select ", values, [*wanted, "big"], f" from {made.sql}{where}")
        alias = f"q{next(self.aliases)}"
        rank = quoted(inner.columns[-1][0])
        kept = self.one_of(f"{rank} <= 2", f"{rank} = 1", f"{rank} < 3 and {rank} > 1")
        shown = inner.columns if self.chance(0.4) else inner.columns[:-1]
        items = ", ".join(quoted(name) for name, _ in shown)
        return Query(f"select {items} from ({inner.sql}) {alias} where {kept}", shown)

    def limited(self, depth: int, kinds: Sequence[str]) -> Query:
        """Return a query with ORDER BY and LIMIT."""
        made = self.query(depth - 1) if depth > 0 and self.chance(0.3) else self.plain(depth, kinds)
        alias = f"q{next(self.aliases)}"
        cols = [Col(f"{alias}.{quoted(name)}", kind) for name, kind in made.columns]
        limit = self.one_of(" limit 1", " limit 3", " limit 3 offset 1", " offset 2", " fetch first row only")
        text = f"select * from ({made.sql}) {alias} order by {self.total(cols)}{limit}"
        if self.chance(0.2):
            text = f"select * from ({made.sql}) {alias} order by {cols[0].sql} fetch first 2 rows with ties"
        return Query(text, made.columns)

    def distinct_on(self, depth: int) -> Query:
        """Return a SELECT DISTINCT ON."""
        made = self.read_from(depth, most=2)
        where = self.filter(made.cols, depth)
        wanted = [self.kind_of(made.cols) for _ in range(self.random.randrange(1, 4))]
        values = [self.value(kind, made.cols, 1) for kind in wanted]
        keys = [self.value(self.kind_of(made.cols), made.cols, 0) for _ in range(self.random.choice((1, 1, 2)))]
        keys = list(dict.fromkeys(keys))
        end = f" from {made.sql}{where} order by {self.total(made.cols, keys)}"
        return self._selected(f"select distinct on ({', '.join(keys)}) ", values, wanted, end)

    def combined(self, depth: int, kinds: Sequence[str]) -> Query:
        """Return a set operation."""
        left = self.plain(depth - 1, kinds)
        text = left.sql
        for _ in range(self.random.choice((1, 1, 1, 2))):
            right = self.grouped(depth - 1, kinds) if self.chance(0.25) else self.plain(depth - 1, kinds)
            word = self.one_of("union", "union all", "union all", "except", "intersect", "except all", "intersect all")
            text = f"{text} {word} {right.sql}" if self.chance(0.8) else f"({text}) {word} ({right.sql})"
        return Query(text + self._some(kinds), left.columns)
