"""Give a partition its Spark SQL: its query over the rows of all parts at once, where Spark means exactly the same.

The store computes one part at a time. Spark has the rows of many parts in `part`, so a window partitions by the columns
of the part too. DISTINCT ON and GROUP BY name them anyway, and a LIMIT has one part only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.protocol.relation import TRAVEL_PREFIX, Relation
from service.protocol.stage import Partition
from service.protocol.stage_spark import spark_column
from service.sql.expressions.allowed import called_name
from service.sql.expressions.operators import truth
from service.sql.expressions.scalar import Name
from service.sql.expressions.typed import (
    BIGINT,
    Typed,
    coerced,
    quoted_name,
)
from service.sql.queries.nodes import bare, columns_of
from service.sql.queries.parts import PART
from service.sql.queries.spark_calls import PartScope, check_equal, number_of
from service.sql.queries.spark_scope import is_uniform, value_text
from service.sql.text.tree import identifier

_PLACE: Final = f"{TRAVEL_PREFIX}place"


def with_part_query(
    partition: Partition, query: exp.Expr, alias: str, relation: Relation, target: Relation
) -> Partition:
    """Return a partition with its Spark text, or with the reason why it has none. `query` is its tree.

    The text is a query over the view `part`, whose columns have the names that those of the input `alias` have in
    Spark. It gives the columns of the target, each in its Spark type.
    """
    columns = {
        column.name: Typed(quoted_name(spark_column(alias, column.name)), column.type, column=column)
        for column in relation.columns
        if "${" not in column.name
    }
    try:
        for name in partition.columns:
            check_equal(columns[name])
        spark = _Query(relation, columns, partition.columns).printed(query, target)
    except (Invalid, NotFound) as error:
        return partition.model_copy(update={"spark": None, "refusal": str(error)})
    except (RecursionError, ValueError, KeyError):
        return partition.model_copy(update={"spark": None, "refusal": "Spark's planner does not read it"})
    reads = tuple((alias, name) for name in _read(query, relation))
    return partition.model_copy(update={"spark": spark, "refusal": None, "reads": reads})


def _read(query: exp.Expr, relation: Relation) -> Iterator[str]:
    """Yield the columns of the part that a query reads: all of them, if it has a `*` for them."""
    named = {name for alias, name in columns_of(query) if alias in ("", PART)}
    every = any(isinstance(one.parent, exp.Select) for one in query.find_all(exp.Star))
    return (column.name for column in relation.columns if every or column.name in named)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a SELECT: its values by their names, and what follows them in Spark's text.

    The digits behind the point of an `irregular` number are not the same in all rows of Postgres.
    """

    values: Mapping[str, Typed]
    source: str
    irregular: frozenset[str]

    @property
    def text(self) -> str:
        shown = ", ".join(f"{one.sql} as {quoted_name(name)}" for name, one in self.values.items())
        return f"select {shown} {self.source}"

    @property
    def columns(self) -> dict[str, Typed]:
        """The values as columns of a relation."""
        return {name: Typed(quoted_name(name), one.type) for name, one in self.values.items()}


@dataclass(frozen=True, slots=True)
class _Query:
    relation: Relation
    part: Mapping[str, Typed]
    keys: Sequence[str]

    def printed(self, root: exp.Expr, target: Relation) -> str:
        """Print a query whose values have exactly the types of the target's columns. Raises Invalid."""
        scope, source, irregular = self._from(root)
        shown: list[str] = []
        for node in root.expressions:
            name, inner = node.alias_or_name, _without_cast(node.unalias())
            kind = target.column(name).type
            if kind.unbounded and not _regular(inner, scope, irregular):
                raise Invalid("only the state store has as many digits behind the point as Postgres")
            shown.append(f"{value_text(scope.bind(inner), inner, kind)} as {quoted_name(name)}")
        return f"select {', '.join(shown)} {self._after(root, scope, source)}"

    def _rows(self, root: exp.Expr) -> _Rows:
        scope, source, irregular = self._from(root)
        values: dict[str, Typed] = {}
        loose: set[str] = set()
        for node in root.expressions:
            if isinstance(node, exp.Star):
                values |= {name: one for (qualifier, name), one in scope.values.items() if qualifier is None}
                continue
            name, inner = node.alias_or_name, node.unalias()
            values[name] = scope.bind(inner)
            if not _regular(inner, scope, irregular):
                loose.add(name)
        return _Rows(values, self._after(root, scope, source), frozenset(loose))

    def _from(self, root: exp.Expr) -> "tuple[PartScope, str, frozenset[str]]":
        """Return the names of a FROM clause, its text, and which of its columns are irregular."""
        _check_clauses(root)
        source = root.args["from_"].this
        if isinstance(source, exp.Table) and source.name == PART and not source.args.get("db"):
            text, columns, alias, irregular = f"from {PART}", dict(self.part), PART, frozenset[str]()
        elif isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select):
            alias, inner = identifier(source.args["alias"].this), self._rows(source.this)
            text, columns, irregular = f"from ({inner.text}) {quoted_name(alias)}", inner.columns, inner.irregular
        else:
            raise Invalid("only the state store computes such a query of a part")
        names: dict[Name, Typed] = {(None, name): one for name, one in columns.items()}
        names |= {(alias, name): one for name, one in columns.items()}
        keys = [self.part[name].sql for name in self.keys] if alias == PART else []
        scope = PartScope(names, keys=keys)
        for join in root.args.get("joins") or ():
            scope, text = self._copies(join, scope, text)
        return scope, text, irregular

    def _copies(self, join: exp.Expr, scope: "PartScope", text: str) -> "tuple[PartScope, str]":
        """Return the names and the text with a number for each of some copies of a row."""
        series = join.this.this if isinstance(join.this, exp.Lateral) else None
        if not isinstance(series, exp.Anonymous) or called_name(series) != "generate_series":
            raise Invalid("only the state store computes such a query of a part")
        alias = join.this.args["alias"]
        name = identifier(alias.columns[0])
        count = coerced(scope.bind(series.expressions[1]), BIGINT).sql
        numbers = f"explode(case when {count} > 0 then sequence(1L, {count}) else array() end)"
        number = Typed(quoted_name(name), BIGINT)
        values = {**scope.values, (identifier(alias.this), name): number}
        return replace(scope, values=values), f"from (select *, {numbers} as {number.sql} {text})"

    def _after(self, root: exp.Expr, scope: "PartScope", source: str) -> str:
        """Print what follows the values of a SELECT."""
        where, group, order = (root.args.get(name) for name in ("where", "group", "order"))
        text = source
        if where is not None:
            text += f" where {truth(scope.bind(where.this), 'WHERE')}"
        if group is not None:
            text += f" group by {', '.join(scope.equal(one) for one in group.expressions)}"
        distinct = root.args.get("distinct")
        if distinct is not None:
            keys = ", ".join(scope.equal(one) for one in distinct.args["on"].expressions)
            return _first(text, "row_number()", f"partition by {keys} {scope.ordered(order)}", "1")
        count, offset, ties = _limits(root)
        if count is None and offset is None:
            return text
        if scope.keys:
            raise Invalid("only the state store limits the rows of each part")
        if ties:
            return _first(text, "rank()", scope.ordered(order), str(count))
        limit = "" if count is None else f" limit {count}"
        return f"{text} {scope.ordered(order)}{limit}{f' offset {offset}' if offset is not None else ''}"


def _first(text: str, function: str, window: str, last: str) -> str:
    """Print the rows of a FROM clause that have one of the first places."""
    place = quoted_name(_PLACE)
    return f"from (select *, {function} over ({window}) as {place} {text}) where {place} <= {last}"


def _check_clauses(root: exp.Expr) -> None:
    known = {"expressions", "from_", "joins", "where", "group", "order", "distinct", "limit", "offset", "kind"}
    if not isinstance(root, exp.Select) or any(value and name not in known for name, value in root.args.items()):
        raise Invalid("only the state store computes such a query of a part")


def _limits(root: exp.Expr) -> tuple[int | None, int | None, bool]:
    """Return the numbers of LIMIT and OFFSET, and whether rows that tie with the last one stay."""
    limit, offset = root.args.get("limit"), root.args.get("offset")
    count, ties = None, False
    if isinstance(limit, exp.Fetch):
        options = limit.args.get("limit_options")
        ties = options is not None and bool(options.args.get("with_ties"))
        count = number_of(limit.args["count"]) if limit.args.get("count") is not None else 1
    elif limit is not None:
        count = number_of(limit.expression)
    if ties and offset is not None:
        raise Invalid("only the state store skips rows of equal order")
    return count, None if offset is None else number_of(offset.expression), ties


def _without_cast(node: exp.Expr) -> exp.Expr:
    """Return the column whose cast to the type in which it is stored makes the outermost SELECT."""
    return node.this if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column) else node


def _regular(node: exp.Expr, scope: "PartScope", irregular: frozenset[str]) -> bool:
    """Whether all values of a number have as many digits behind the point as Spark's have."""
    inner = bare(node)
    while isinstance(inner, exp.Window | exp.Filter | exp.Order):
        inner = bare(inner.this)
    if isinstance(inner, exp.Bracket):
        return _regular(bare(inner.this), scope, irregular)
    if isinstance(inner, exp.Anonymous):
        name = called_name(inner)
        given = [
            each for one in inner.expressions for each in (one.expressions if isinstance(one, exp.Distinct) else [one])
        ]
        if name in ("sum", "min", "max", "any_value", "array_agg", "first_value", "last_value", "nth_value"):
            return all(_regular(one, scope, irregular) for one in given[:1])
        return name in ("lag", "lead") and len(given) < 3 and _regular(given[0], scope, irregular)
    if isinstance(inner, exp.Column):
        return identifier(inner.this) not in irregular
    unbounded = any(scope.is_unbounded(one) for one in inner.find_all(exp.Column))
    return is_uniform(inner) and not unbounded and irregular.isdisjoint(name for _, name in columns_of(inner))
