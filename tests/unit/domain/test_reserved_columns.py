"""Names that no user's column has: one list, which the code that uses the names keeps to."""

import re
from pathlib import Path

import pytest

from service.protocol.relation import why_reserved
from workers.backfill.order import POSITION_STATE, position_column
from workers.state_store.port import OPERATION, VNODE

ROOT = Path(__file__).parents[3]
OF_OTHER_FRAMES: set[str] = set()
"""Names that never stand beside a user's column."""


@pytest.mark.parametrize("name", [OPERATION, POSITION_STATE, position_column(0), position_column(31), VNODE])
def test_d5_what_travels_beside_a_row_has_a_name_that_no_user_can_have(name: str) -> None:
    assert why_reserved(name)


@pytest.mark.parametrize("name", ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"])
def test_c1_s4_system_columns_are_refused_as_postgres_folds_them(name: str) -> None:
    assert "system column" in (why_reserved(name) or "")
    assert why_reserved(name.upper()) is None


@pytest.mark.parametrize("name", ["_op", "_p", "_p_0", "_report", "_k0", "id", "_VNODE", "tidefill", "oid"])
def test_d5_other_names_are_free(name: str) -> None:
    assert why_reserved(name) is None


def test_d5_no_other_column_of_ours_is_written_anywhere() -> None:
    """A name that begins as ours do, and stands in a text of the code, is a reserved one."""
    written = re.compile(r"""["'`](_[a-z][a-z_0-9]*)["'`]""")
    sources = [path for part in ("state_store", "runners", "engines", "rpc", "queries", "backfill")
               for path in (ROOT / "workers" / part).rglob("*.py")]  # fmt: skip
    found = {name for path in sources for name in written.findall(path.read_text())}
    unknown = {name for name in found if not why_reserved(name) and name not in OF_OTHER_FRAMES}
    assert not unknown
