"""Plan the query of a view as stages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.domain.errors import Invalid
from service.protocol.relation import Relation
from service.sql.queries.drafting import drafts_of
from service.sql.queries.drafts import Draft
from service.sql.queries.planner import planned
from service.sql.queries.relations import Rows, absorbed
from service.sql.text.tree import Tree


def plan_query(
    tree: Tree,
    relations: Mapping[str, Relation],
    views: Mapping[str, Tree],
    names: Sequence[str],
    steps: float = math.inf,
) -> tuple[Draft, ...]:
    """Return the drafts of a query's stages, the view's own last. Raises Invalid, NotFound and TooManySteps.

    `names` are the view's columns as Postgres names them. Postgres has accepted the query.
    """
    try:
        return _planned(tree, relations, views, names, steps)
    except RecursionError:
        raise Invalid("the query is nested too deeply", position=tree.start + 1) from None
    except Invalid as error:
        raise error if error.position is not None else Invalid(error.message, position=tree.start + 1) from None


def _planned(
    tree: Tree, relations: Mapping[str, Relation], views: Mapping[str, Tree], names: Sequence[str], steps: float
) -> tuple[Draft, ...]:
    planner, block = planned(tree, relations, views, steps)
    if len(names) != len(block.outputs):
        raise Invalid("the columns of the query are not those that Postgres gives it", position=tree.start + 1)
    if not names:
        raise Invalid("a view needs a column", position=tree.start + 1)
    outputs = tuple(replace(one, name=name) for one, name in zip(block.outputs, names, strict=True))
    for at, one in enumerate(outputs):
        if one.name in names[:at]:
            raise Invalid(f'column "{one.name}" specified more than once', position=one.place)
    block = replace(block, outputs=outputs)
    view = absorbed(block) or planner.made.add(Rows((block,)))
    drafts = drafts_of(view, planner.made.pending)
    last = drafts[-1].target
    return tuple(replace(one, final=one.target == last) for one in drafts)
