"""Resolve names: every column of a query becomes the expression that its FROM gives it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sqlglot import exp

from service.domain.errors import Invalid, NotFound
from service.sql.queries.blocks import Output
from service.sql.text.tree import Tree, identifier


@dataclass(frozen=True, slots=True)
class Common:
    """A common table expression: its query, and the scope in which that was written."""

    name: str
    node: exp.Expr
    columns: tuple[str, ...]
    scope: "Scope"


@dataclass(frozen=True, slots=True)
class Names:
    """The columns that a FROM gives: all in order, and those of each item by its name."""

    columns: tuple[Output, ...] = ()
    items: Mapping[str, tuple[Output, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def __add__(self, other: "Names") -> "Names":
        return Names((*self.columns, *other.columns), {**self.items, **other.items})

    def changed(self, change: Callable[[exp.Expr], exp.Expr]) -> "Names":
        """Return the names with `change` applied to every expression."""

        def apply(columns: Sequence[Output]) -> tuple[Output, ...]:
            return tuple(replace(one, value=change(one.value)) for one in columns)

        return Names(apply(self.columns), {name: apply(columns) for name, columns in self.items.items()})

    @property
    def values(self) -> Iterator[Output]:
        """All columns, of which several can be the same expression."""
        yield from self.columns
        for columns in self.items.values():
            yield from columns


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that an expression can use: those of its FROM, then those of the outer query."""

    tree: Tree
    names: Names = Names()
    outer: "Scope | None" = None
    common: Mapping[str, Common] = field(default_factory=lambda: MappingProxyType({}))

    def column(self, node: exp.Column) -> exp.Expr:
        """Return the expression of a column. Raises Invalid and NotFound."""
        at: Scope | None = self
        while at is not None:
            found = at.own(node)
            if found is not None:
                return found.copy()
            at = at.outer
        name = identifier(node.this)
        place = self.tree.position(node)
        if node.args.get("table") is None and self.is_item(name):
            raise Invalid(f'the whole row "{name}" is not supported in a view: name its columns', position=place)
        raise NotFound(f'column "{name}" does not exist', kind="column", position=place)

    def own(self, node: exp.Column) -> exp.Expr | None:
        """Return the expression that this query's FROM gives a column, or None. Raises Invalid."""
        if isinstance(node.this, exp.Star):
            raise Invalid("a whole row is not supported in a view: name its columns", position=self.tree.position(node))
        name, table = identifier(node.this), node.args.get("table")
        columns = self.names.columns if table is None else self.names.items.get(identifier(table), ())
        found = [one for one in columns if one.name == name]
        if len(found) > 1:
            raise Invalid(f'column reference "{name}" is ambiguous', position=self.tree.position(node))
        return found[0].value if found else None

    def is_item(self, name: str) -> bool:
        """Whether a name is that of an item in FROM, of this query or an outer one."""
        return name in self.names.items or (self.outer is not None and self.outer.is_item(name))

    def starred(self, node: exp.Expr) -> tuple[Output, ...] | None:
        """Return the columns that `*` or `name.*` stands for, or None for any other node."""
        if isinstance(node, exp.Star):
            return self.names.columns
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            name = identifier(node.args.get("table"))
            if name not in self.names.items:
                message = f'missing FROM-clause entry for table "{name}"'
                raise NotFound(message, kind="relation", position=self.tree.position(node))
            return self.names.items[name]
        return None

    def found_common(self, name: str) -> Common | None:
        """Return the common table expression of a name, of this query or an outer one."""
        found = self.common.get(name)
        return found if found is not None or self.outer is None else self.outer.found_common(name)

    def within(self, names: Names) -> "Scope":
        """Return the scope of the same query whose FROM gives `names`."""
        return replace(self, names=names)

    def inner(self) -> "Scope":
        """Return the scope of a query in FROM: it knows what the outer query does, but nothing of this FROM."""
        return replace(self, names=Names(), common=dict(self.common))
