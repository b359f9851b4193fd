"""The connector `constant`: the rows of a materialized view that reads no relation, written in its first epoch.

Users cannot name it. The service computes the rows when the view is created.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from service.protocol.connector import Connector

NAME: Final = "constant"
_ROWS: Final = "rows"

Row = tuple[str | None, ...]
"""The values of a row as Postgres texts, in the order of the columns, hidden ones included."""


def of_rows(rows: Sequence[Row]) -> Connector:
    """Return the connector that gives these rows."""
    return Connector(name=NAME, options={_ROWS: json.dumps(rows, ensure_ascii=False, separators=(",", ":"))})


def rows_of(options: Mapping[str, str]) -> tuple[Row, ...]:
    """Return the rows that `of_rows` was given."""
    return tuple(map(tuple, json.loads(options[_ROWS])))
