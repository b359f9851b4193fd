"""Two Delta tables, facts and dims, and the statements of sources and views over them."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from tests.support.mirrored_lake import FED

CHUNK: Final = 1_000_000
DIMS: Final = 100_000
QUERIES: Final = {
    "join": "SELECT f.id, f.amount, d.name FROM facts f JOIN dims d ON d.id = f.dim",
    "aggregate": (
        "SELECT d.name, count(*) AS n, sum(f.amount) AS total FROM facts f JOIN dims d ON d.id = f.dim GROUP BY d.name"
    ),
}


def write(folder: Path, rows: int) -> None:
    """Write both tables."""
    dims = min(DIMS, rows)
    ids = pa.array(range(dims), pa.int64())
    names = pa.array([f"dim {one}" for one in range(dims)])
    write_deltalake(folder / "dims", pa.table({"id": ids, "name": names}), configuration=FED)
    for first in range(0, rows, CHUNK):
        ids = pa.array(range(first, min(first + CHUNK, rows)), pa.int64())
        cents = pc.cast(pc.cast(pc.bit_wise_and(ids, pa.scalar(0xFFFF)), pa.int32()), pa.decimal128(12, 2))
        facts = {"id": ids, "dim": pc.subtract(ids, pc.multiply(pc.divide(ids, dims), dims)), "amount": cents}
        write_deltalake(folder / "facts", pa.table(facts), mode="append", configuration=FED)


def source(folder: Path, name: str) -> str:
    """Return the statement that reads a table in place."""
    return f"CREATE TABLE {name} (*, PRIMARY KEY (id)) WITH (connector = 'deltalake', location = '{folder / name}')"


def view(folder: Path, query: str, name: str) -> str:
    """Return the statement that creates the view of a query in a Delta table of its own."""
    listed = QUERIES[query].replace("sum(f.amount)", "sum(f.amount)::numeric(38, 2)")
    place = f"USING delta LOCATION '{folder / name}' WITH (commit_interval = '1 s')"
    return f"CREATE MATERIALIZED VIEW {name} {place} AS {listed}"
