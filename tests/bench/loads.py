"""Loading rows: INSERT .. SELECT, CSV and Parquet, beside Postgres alone, while another caller inserts single rows."""

import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pyarrow.csv
import pyarrow.parquet

from tests.bench.barriers import latencies
from tests.bench.baselines import settle
from tests.bench.clock import monotonic, pause, wall
from tests.bench.figures import Figure, Section, Target, percentile, ratio
from tests.bench.tables import COLUMNS, CUSTOMERS
from tests.support.service import Service

SHAPE: Final = "id bigint primary key, customer bigint, status text, amount numeric(12,2), created timestamptz"
SCHEMA: Final = "bench_loads"
WANTED_FROM: Final = 10_000_000
"""The size of which a rate is wanted. A smaller load ends before its slices have their size."""
WANTED_ROWS_PER_SECOND: Final = 350_000
WANTED_SECONDS: Final = 2.0
PAUSE: Final = 0.05
"""The other caller waits so long after each answer."""
_CHUNK: Final = 1 << 20


def loads(service: Service, sizes: list[int]) -> list[Section]:
    """Load each size in three ways, with Postgres's own two ways beside them."""
    service.sql("CREATE TABLE others (id bigint primary key, v bigint)")
    try:
        return [Section(f"Loading {rows:,} rows", tuple(_loads(service, rows))) for rows in sizes]
    finally:
        service.sql("DROP TABLE others")


def _loads(service: Service, rows: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="tidefill-bench-") as directory:
        csv, parquet = Path(directory) / "rows.csv", Path(directory) / "rows.parquet"
        _write(service, rows, csv, parquet)
        inserted, copied = _postgres_insert(service, rows), _postgres_copy(service, rows, csv)
        figures = [
            Figure("Postgres: INSERT .. SELECT", inserted, "rows/s"),
            Figure("Postgres: COPY of CSV into a table, INSERT .. SELECT of it", copied, "rows/s"),
        ]
        figures += _measured(service, rows, "INSERT .. SELECT", inserted, None)
        figures += _measured(service, rows, "CSV", copied, (csv, "text/csv"))
        figures += _measured(service, rows, "Parquet", copied, (parquet, "application/vnd.apache.parquet"))
    return figures


def _measured(service: Service, rows: int, name: str, base: float, body: tuple[Path, str] | None) -> list[Figure]:
    service.sql(f"CREATE TABLE loaded ({SHAPE})")
    settle(service)
    since = wall()
    with _other_caller(service) as took:
        began = monotonic()
        if body is None:
            service.sql(f"INSERT INTO loaded {_query(rows)}")
        else:
            _send(service, rows, *body)
        seconds = monotonic() - began
    ((count,),) = service.sql("SELECT count(*) FROM loaded")
    assert int(count) == rows, (count, rows)
    barriers = latencies(service, since, wall()).seconds
    service.sql("DROP TABLE loaded")
    rate = rows / seconds
    wanted = Target(">=", WANTED_ROWS_PER_SECOND) if rows >= WANTED_FROM else None
    return [
        Figure(name, rate, "rows/s", wanted),
        Figure("... as a share of Postgres's", ratio(rate, base), ""),
        Figure("... another caller's INSERT meanwhile, p50", percentile(took, 0.5), "s", note=f"{len(took)} of them"),
        Figure("... p99", percentile(took, 0.99), "s", Target("<", WANTED_SECONDS)),
        Figure("... barriers meanwhile, p99", percentile(barriers, 0.99), "s", note=f"{len(barriers)} of them"),
    ]


def _query(rows: int) -> str:
    return (
        f"SELECT g, g % {CUSTOMERS}, 'open', ((g % 100000) / 100.0)::numeric(12, 2),"
        f" timestamptz '2026-01-01' + g * interval '1 s' FROM generate_series(1, {rows}) g"
    )


def _send(service: Service, rows: int, body: Path, form: str) -> None:
    def chunks() -> Generator[bytes]:
        with body.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    answer = service.http.post("/v1/relations/loaded/rows", content=chunks(), headers={"Content-Type": form})
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json() == {"rows": rows}, answer.text[:300]


@contextmanager
def _other_caller(service: Service) -> Generator[list[float]]:
    """Insert single rows into another table, one after the other; yield the seconds that each took."""
    took: list[float] = []
    errors: list[Exception] = []
    stop = threading.Event()

    def insert() -> None:
        while not stop.is_set():
            began = monotonic()
            try:
                service.run(f"INSERT INTO others VALUES ({len(took)}, 0)")
            except Exception as error:  # noqa: BLE001 - raised when the block ends
                errors.append(error)
                return
            took.append(monotonic() - began)
            pause(PAUSE)

    caller = threading.Thread(target=insert, daemon=True)
    caller.start()
    try:
        yield took
    finally:
        stop.set()
        caller.join()
    if errors:
        raise errors[0]


def _write(service: Service, rows: int, csv: Path, parquet: Path) -> None:
    """Write the rows as files of both forms."""
    with (
        service.store() as store,
        store.cursor() as cursor,
        csv.open("wb") as file,
        cursor.copy(
            f"copy (select * from ({_query(rows)}) q ({COLUMNS})) to stdout (format csv, header)".encode()
        ) as copy,
    ):
        for chunk in copy:
            file.write(chunk)
    convert = pyarrow.csv.ConvertOptions(column_types={"amount": pyarrow.decimal128(12, 2)})
    batches = pyarrow.csv.open_csv(csv, convert_options=convert)
    with batches, pyarrow.parquet.ParquetWriter(parquet, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _postgres_insert(service: Service, rows: int) -> float:
    with service.store() as store, _schema(store):
        settle(service)
        began = monotonic()
        store.execute(f"insert into {SCHEMA}.keyed {_query(rows)}".encode())
        return rows / (monotonic() - began)


def _postgres_copy(service: Service, rows: int, csv: Path) -> float:
    with service.store() as store, _schema(store):
        settle(service)
        began = monotonic()
        into = f"copy {SCHEMA}.heap from stdin (format csv, header)".encode()
        with store.cursor() as cursor, csv.open("rb") as file, cursor.copy(into) as copy:
            while chunk := file.read(_CHUNK):
                copy.write(chunk)
        store.execute(f"insert into {SCHEMA}.keyed select * from {SCHEMA}.heap".encode())
        return rows / (monotonic() - began)


@contextmanager
def _schema(store: psycopg.Connection) -> Generator[None]:
    """Make an empty table with a key, and one without; remove them afterwards."""
    store.execute(f"create schema {SCHEMA}".encode())
    try:
        store.execute(f"create table {SCHEMA}.keyed ({SHAPE})".encode())
        store.execute(f"create table {SCHEMA}.heap as select * from {SCHEMA}.keyed".encode())
        yield
    finally:
        store.execute(f"drop schema {SCHEMA} cascade".encode())
