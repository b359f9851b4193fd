"""Define a draft: one stage before the types of its columns are known.

A draft is plain data and can travel between processes. Several drafts may write one relation (`target`): the branches
of a UNION ALL or the grouping sets of a GROUP BY. The last draft writes the view.
"""

from dataclasses import dataclass, field

from service.protocol.columns import KeyColumn
from service.protocol.relation import Relation
from service.protocol.stage import Condition, Join, Partition, Stage, Value


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an aggregate that is a sum of contributions.

    `sql` is the whole call. `argument` is None for `count(*)`, and has no NULL if it is `sure`. Only rows that satisfy
    `filter` count.
    """

    function: str
    sql: str
    argument: str | None = None
    filter: str | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A column computed from keys (by name) and calls. `parts` is its SQL; a number stands for that call."""

    name: str
    parts: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The aggregate of a draft whose `rows` are the group's keys.

    Keys in `padded` are NULL in this draft, because another draft of the target groups by them. A group looks as its
    rows that satisfy `seen` do.
    """

    calls: tuple[Call, ...]
    results: tuple[Result, ...]
    always: bool
    padded: frozenset[str] = frozenset()
    seen: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """One stage without types.

    `columns` are the target's columns in order; the first `visible` ones are not hidden. An aggregate's sums follow
    them. A `final` draft writes the view. `rows` are all columns, or an aggregate's keys, or nothing for a partition.
    `seen` is the query of the partition if a column has values that are equal and look different.
    `branches` has the joins and the rows of all drafts of a target of several branches, so that their common types can
    be described.
    """

    target: int
    joins: tuple[Join, ...]
    where: tuple[Condition, ...]
    rows: tuple[Value, ...]
    columns: tuple[str, ...]
    visible: int
    key: tuple[KeyColumn, ...]
    distribution: tuple[str, ...]
    not_null: frozenset[str]
    grouping: Grouping | None = None
    partition: Partition | None = None
    final: bool = False
    seen: str | None = None
    branches: tuple[tuple[tuple[Join, ...], tuple[Value, ...]], ...] = ()
    places: dict[str, int] = field(default_factory=dict[str, int])
    """The position of each column in the statement, as far as known."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A stage and the relation that it writes."""

    stage: Stage
    relation: Relation
