"""Hostile Parquet files take no more memory than a process may have (I13)."""

import mmap
import resource
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.protocol.delta import DeltaPlace
from tests.support.drops import relation_of
from workers.connectors import folder_files, folder_watch, parquet_rows
from workers.connectors.delta_files import Files
from workers.connectors.folder_watch import describe
from workers.connectors.parquet_rows import DataFile, read_rows
from workers.connectors.port import RefusedTableError


def written(location: Path, name: str, table: pa.Table) -> None:
    pq.write_table(table, location / name, dictionary_pagesize_limit=1 << 30, compression="zstd")


def ids(count: int) -> "pa.Array[Any]":
    return pa.array(range(count), pa.int64())


def test_i13_a_file_that_expands_beyond_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 191 kB took 13.9 GB in one task."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 65_536, pa.int32()), pa.array(["x" * 64_000]))
    written(tmp_path, "a.parquet", pa.table({"id": ids(65_536), "v": values}))
    relation, files = relation_of({"location": str(tmp_path)}), Files.of(DeltaPlace(location=str(tmp_path)))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(parquet_rows, "MEMORY", 512 << 20)
    with pytest.raises(RefusedTableError, match=r"a\.parquet\" takes more than \d+ MB of memory to read"):
        list(read_rows(files, relation, DataFile("a.parquet", {}), 0, None))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_what_a_process_has_already_leaves_a_file_its_memory(tmp_path: Path) -> None:
    """Beyond the limit each thread of the process lacked memory: one of an object store never began."""
    written(tmp_path, "a.parquet", pa.table({"id": ids(100)}))
    relation, files = relation_of({"location": str(tmp_path)}), Files.of(DeltaPlace(location=str(tmp_path)))
    with mmap.mmap(-1, parquet_rows.MEMORY, flags=mmap.MAP_PRIVATE):
        rows = read_rows(files, relation, DataFile("a.parquet", {}), 0, None)
        first, batch = next(rows)
        threads = [threading.Thread(target=bytearray, args=[1 << 25]) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert (first, batch.num_rows, list(rows)) == (0, 100, [])
    for thread in threads:
        thread.join()


def test_wide_rows_come_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "a.parquet", pa.table({"id": ids(100), "v": [str(one) * 5_000 for one in range(100)]}))
    relation, files = relation_of({"location": str(tmp_path)}), Files.of(DeltaPlace(location=str(tmp_path)))
    monkeypatch.setattr(parquet_rows, "BATCH_BYTES", 100_000)
    batches = [batch for _, batch in read_rows(files, relation, DataFile("a.parquet", {}), 0, None)]
    assert sum(one.num_rows for one in batches) == 100
    assert max(one.num_rows for one in batches) < 20


@pytest.mark.parametrize("most", [2, 14, 300])
def test_i13_a_file_of_too_many_columns_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """600 links to a file of 100,001 columns took 4.5 GB of the worker, and minutes."""
    monkeypatch.setattr(folder_files, "COLUMNS_MAX", most)
    written(tmp_path, "a.parquet", pa.table({f"c{number}": ids(1) for number in range(most)}))
    assert describe({"location": str(tmp_path)}).rows == 1
    written(tmp_path, "a.parquet", pa.table({f"c{number}": ids(1) for number in range(most + 1)}))
    with pytest.raises(RefusedTableError, match=f"it has {most + 1} columns, and at most {most} can be read"):
        describe({"location": str(tmp_path)})


def test_i13_the_files_of_a_folder_have_so_many_columns_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "COLUMNS_MAX", 2)
    for name in ("a", "b"):
        written(tmp_path, f"{name}.parquet", pa.table({"id": ids(1), name: ids(1)}))
    with pytest.raises(RefusedTableError, match="its files have more than 2 columns together"):
        describe({"location": str(tmp_path)})
