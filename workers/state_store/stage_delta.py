"""Print what changed in the inputs of a stage in an epoch: their states before and after it, and the versions between.

Of an input that is still being read, a stage sees a *prefix* of each vnode, and the prefix grows. Its state before the
epoch is what was alive then and within the prefix of then; its state after it likewise. So its *old* versions are those
of the prefix before that ended, and its *new* ones are those that began within it, and the page: what is alive now
between the two prefixes. A row that changed within the page is seen once, as the page has it. Pure.

A condition on a prefix is a CASE, which Postgres never looks up by an index: the index of a lookup is by its values.
Next: `workers.state_store.stage_blocks`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from service.protocol.ids import RelationId
from service.protocol.quoting import quoted
from service.protocol.relation import ALIVE, Relation, state_table
from workers.backfill.order import Position, key_of, upto_postgres
from workers.backfill.positions import Span
from workers.backfill.stages import Advance, Advances, BoundStage, Reached, Window, Windows
from workers.state_store.statements import page_rows

OLD: Final = "old"
NEW: Final = "new"
PAGE: Final = "page"


@dataclass(frozen=True, slots=True)
class Delta:
    """The inputs of a stage in one epoch.

    `changed` are the relations of which versions began or ended in their windows. `advances` has the inputs that are
    still being read.
    """

    bound: BoundStage
    windows: Windows
    changed: Collection[RelationId]
    advances: Advances = field(default_factory=dict[str, Advance])

    def window(self, alias: str) -> Window:
        """Return the window of an input."""
        return self.windows[self.bound.of[alias].id]

    @property
    def moved(self) -> Collection[str]:
        """The inputs with old or new versions. If there are none, the driver, so that both sides have a term."""
        found = [alias for alias, one in self.bound.of.items() if one.id in self.changed or alias in self.paged]
        return found or [self.bound.stage.driver.alias]

    @property
    def paged(self) -> Collection[str]:
        """The inputs of which a page was read."""
        return [alias for alias, one in self.advances.items() if one.before != one.after]

    def source(self, alias: str, side: str) -> str:
        """Return the name of the CTE with the old or the new versions of an input."""
        relation = self.bound.of[alias].id
        if alias not in self.advances:
            return f"{side}_{relation}"
        return f"{side}_{relation}_{list(self.bound.of).index(alias)}"


def states_of(delta: Delta, side: str) -> Mapping[str, str]:
    """Return the condition that a version is visible, per input: before the epoch (`OLD`), or after it (`NEW`)."""
    return {alias: state_of(delta, alias, side) for alias in delta.bound.of}


def state_of(delta: Delta, alias: str, side: str) -> str:
    """Return the condition that a version of one input is visible on a side."""
    window, advance = delta.window(alias), delta.advances.get(alias)
    text = visible(window.after if side == OLD else window.upto)
    if advance is None:
        return text
    return f"{text} and {within(delta.bound.of[alias], advance.before if side == OLD else advance.after)}"


def unchanged(delta: Delta) -> Mapping[str, str]:
    """Return the condition that a version is visible both before and after the epoch, per input."""
    texts: dict[str, str] = {}
    for alias, relation in delta.bound.of.items():
        window, advance = delta.window(alias), delta.advances.get(alias)
        both = f"_from <= {window.after} and _to > {window.upto}"
        texts[alias] = both if advance is None else f"{both} and {within(relation, advance.before)}"
    return texts


def visible(at: int) -> str:
    """Print the condition that a version is visible at an epoch."""
    return f"_from <= {at} and _to > {at}"


def versions(delta: Delta) -> Iterator[str]:
    """Yield the CTEs with the old and the new versions of each input that moved, each once."""
    texts = {delta.source(alias, PAGE): _page(delta, alias) for alias in delta.paged}
    for alias in delta.moved:
        for side in (OLD, NEW):
            texts[delta.source(alias, side)] = _versions(delta, alias, side)
    yield from (f"{name} as materialized ({text})" for name, text in texts.items())


def counted(delta: Delta) -> str:
    """Print how many versions began or ended. Rows of pages are counted elsewhere."""
    names = {delta.source(alias, side) for alias in delta.moved for side in (OLD, NEW)}
    texts = [f"+ (select count(*) from {name})" for name in sorted(names)]
    return " ".join([*texts, *(f"- (select count(*) from {delta.source(alias, PAGE)})" for alias in delta.paged)])


def within(relation: Relation, reached: Reached) -> str:
    """Print the condition that the key of a row is at or before what was read of its vnode."""
    if len(reached.completed) == relation.vnode_count:
        return "true"
    key = key_of(relation)
    arms = [f"when {_in(reached.completed)} then true"] if reached.completed else []
    by_key = sorted(reached.keys.items(), key=lambda one: (_ordered(one[1]), one[0]))
    for position, vnodes in groupby(by_key, key=lambda one: one[1]):
        arms.append(f"when {_in([vnode for vnode, _ in vnodes])} then {upto_postgres(key, position)}")
    return f"(case {' '.join(arms)} else false end)" if arms else "false"


def _versions(delta: Delta, alias: str, side: str) -> str:
    relation, window, advance = delta.bound.of[alias], delta.window(alias), delta.advances.get(alias)
    columns = _columns(relation)
    if relation.id not in delta.changed:
        spanned = "false"
    elif side == OLD:
        spanned = f"_to > {window.after} and _to <= {window.upto} and _to <> {ALIVE} and _from <= {window.after}"
    else:
        # A plain `_to > ..` could be served by a lookup index, through all live versions.
        spanned = f"_from > {window.after} and _from <= {window.upto} and _to - {window.upto} > 0"
    text = f"select {columns} from {state_table(relation.id)} where {spanned}"
    if advance is not None and spanned != "false":
        # The planner must not weigh this long condition against the ranges of the index on `_from`: without statistics
        # it would read another index as a whole.
        text = f"select {columns} from ({text} offset 0) spanned where {within(relation, advance.before)}"
    if side == OLD or alias not in delta.paged:
        return text
    return f"{text} union all select {columns} from {delta.source(alias, PAGE)}"


def _page(delta: Delta, alias: str) -> str:
    """Print the query for the rows that were read of an input in the epoch, as they are after it."""
    relation, advance, at = delta.bound.of[alias], delta.advances[alias], delta.window(alias).upto
    ends: dict[Position | None, list[Span]] = {}
    for vnode in sorted(advance.after.completed | advance.after.keys.keys()):
        begin, end = advance.before.keys.get(vnode), advance.after.keys.get(vnode)
        moved = vnode not in advance.before.completed and (end is None or begin != end)
        if moved:
            ends.setdefault(end, []).append(Span(vnode, begin))
    columns = _columns(relation).removeprefix("_vnode, ")
    return " union all ".join(page_rows(relation, block, upto, columns, at=at) for upto, block in ends.items())


def _columns(relation: Relation) -> str:
    return ", ".join(["_vnode", *(quoted(column.name) for column in relation.columns)])


def _in(vnodes: Collection[int]) -> str:
    return f"_vnode = any('{{{','.join(map(str, sorted(vnodes)))}}}'::smallint[])"


def _ordered(position: Position) -> tuple[tuple[bool, str], ...]:
    return tuple((text is None, text or "") for text in position)
