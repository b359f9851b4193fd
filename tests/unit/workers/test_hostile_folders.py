"""I5, I13: files and folders that were made to hurt cost their table a file, and others nothing."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from service.protocol.delta import DeltaPlace
from service.protocol.request import Rejected
from tests.support.drops import drop, relation_of, rows
from tests.unit.workers.test_folders import look, watch_of
from workers.agent import ANSWERED_AT_ONCE, Agent
from workers.connectors import folder_files, folder_watch
from workers.connectors.delta_files import Files
from workers.connectors.folder_files import listed
from workers.connectors.in_place import folder_in
from workers.connectors.parquet_rows import PIECE_ROWS, DataFile, pieces_of, read_rows
from workers.connectors.places import check_place, check_roots
from workers.connectors.port import RefusedTableError


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    at = tmp_path / "drop"
    drop(at / "a.parquet", rows(1, 3))
    for name in ("x", "y"):
        (at / name).symlink_to(".")
    folder = folder_in(relation_of({"location": str(at)}))
    assert list(listed(folder)) == ["a.parquet"]


@pytest.mark.parametrize("limit", ["FILES_MAX", "LIST_SECONDS"])
def test_a_folder_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    at = tmp_path / "drop"
    for name in "abc":
        drop(at / f"{name}.parquet", rows(1, 3))
    watch = watch_of(at)
    monkeypatch.setattr(folder_files, limit, 2 if limit == "FILES_MAX" else -1.0)
    assert look(watch) == []
    assert "more than" in str(watch.waiting)
    with pytest.raises(RefusedTableError, match="more than"):
        folder_watch.describe({"location": str(at)})


def test_i13_a_table_of_another_caller_below_does_not_fill_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink with 100,000 partitions below the folder of another caller's files had that given up."""
    drop(tmp_path / "a.parquet", rows(1, 3))
    for place in ("other/_delta_log/0.json", "other/p=1/b.parquet", "other/p=2/c.parquet", "_mine/d/e.parquet"):
        drop(tmp_path / place, rows(3, 6))
    monkeypatch.setattr(folder_files, "FILES_MAX", 2)
    folder = folder_in(relation_of({"location": str(tmp_path)}))
    assert list(listed(folder)) == ["a.parquet"]


def test_the_whole_machine_is_no_place_for_a_table() -> None:
    for location in ("/", "/tmp/..", "/proc/self/root"):
        with pytest.raises(ValueError, match="whole machine"):
            check_place(DeltaPlace(location=location))


def test_i13_no_link_leads_out_of_the_permitted_places(tmp_path: Path) -> None:
    roots = [str(tmp_path / "lake"), "s3://bucket"]
    for name in ("lake/sales", "lakes", "mounted"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lake/out").symlink_to(tmp_path / "lakes")
    (tmp_path / "lake/in").symlink_to(tmp_path / "lake/sales")
    (tmp_path / "link").symlink_to(tmp_path / "mounted")
    for name in ("lake", "lake/sales", "lake/new/table"):
        check_roots({"location": str(tmp_path / name)}, roots)
    for name in ("mounted/a", "link/a"):
        check_roots({"location": str(tmp_path / name)}, [str(tmp_path / "link")])
    for name in ("lake/out", "lake/out/table", "lake/in/../../lakes"):
        with pytest.raises(ValueError, match="leads out of the permitted places"):
            check_roots({"location": str(tmp_path / name)}, roots)


def test_i13_a_folder_has_one_name(tmp_path: Path) -> None:
    """A PURGE of `//lake/p` removed the files of another sink in `/lake/p/of_others`, and a table fed itself."""
    (tmp_path / "lake/sales").mkdir(parents=True)
    (tmp_path / "lake/in").symlink_to(tmp_path / "lake/sales")
    for roots in (None, [str(tmp_path)]):
        for prefix in ("/proc/self/root", "/proc/thread-self/root"):
            with pytest.raises(ValueError, match=r"leads over a link|leads out"):
                check_roots({"location": f"{prefix}{tmp_path}/lake/sales"}, roots)
        for name in ("lake/in", "lake/in/new"):
            with pytest.raises(ValueError, match="leads over a link: name its folder by its own path"):
                check_roots({"location": f"{tmp_path}/{name}"}, roots)
        check_roots({"location": f"/{tmp_path}/lake/./sales/"}, roots)
    for none in ((), ("s3://bucket",)):
        with pytest.raises(ValueError, match="leads out of the permitted places"):
            check_roots({"location": f"{tmp_path}/lake/sales"}, none)


def test_i13_no_file_of_a_table_is_read_from_elsewhere(tmp_path: Path) -> None:
    table, secret = tmp_path / "table", drop(tmp_path / "secret.parquet", rows(1, 3))
    inside = drop(table / "a.parquet", rows(1, 3))
    (table / "link.parquet").symlink_to(secret)
    (table / "folder").symlink_to(tmp_path)
    (table / "same.parquet").symlink_to(inside)
    os.mkfifo(table / "fifo.parquet")
    linked = tmp_path / "linked"
    linked.symlink_to(table)
    for location in (table, linked):
        files = Files.of(DeltaPlace(location=str(location)))
        assert files.read("a.parquet") == files.read("same.parquet") == inside.read_bytes()
        assert files.table("a.parquet").num_rows == 3
        for path in ("link.parquet", "folder/secret.parquet", "../secret.parquet", "x/../../secret.parquet"):
            with pytest.raises(PermissionError, match="leads out of"):
                files.opened(path)
        with pytest.raises(PermissionError, match="is no file"):
            files.opened("fifo.parquet")
        with pytest.raises(FileNotFoundError):
            files.opened("gone.parquet")


def test_a_name_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    at = tmp_path / "drop"
    drop(at / "a.parquet", rows(1, 3))
    watch = watch_of(at)
    assert look(watch) == ["a.parquet"]
    drop(at / "b.parquet", rows(10, 3)).rename(os.fsdecode(os.fsencode(at) + b"/\xff.parquet"))
    drop(at / "late.parquet", rows(20, 3))
    assert look(watch) == ["late.parquet"]


def test_whatever_a_look_raises_it_is_looked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(tmp_path / "drop" / "a.parquet", rows(1, 3))
    watch = watch_of(tmp_path / "drop")

    def raises(_: object) -> None:
        raise MemoryError("a footer of terabytes")

    with monkeypatch.context() as patch:
        patch.setattr(folder_watch, "listed", raises)
        watch.try_to_look()
    assert "a footer of terabytes" in str(watch.waiting)
    assert look(watch) == ["a.parquet"]


def told_of(watch: folder_watch.FolderWatch, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what users are told of files that are left out for long."""
    monkeypatch.setattr(folder_watch, "PATIENCE_SECONDS", 0.0)
    look(watch)
    return str(watch.waiting)


@pytest.mark.parametrize("broken", ["thrift", "length", "magic"])
def test_a_broken_footer_leaves_out_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    at = tmp_path / "drop"
    drop(at / "a.parquet", rows(1, 3))
    watch = watch_of(at)
    whole = drop(at / "b.parquet", rows(10, 3)).read_bytes()
    parts = {
        "thrift": whole[:-208] + b"\xff" * 200 + whole[-8:],
        "length": whole[:-8] + b"\xff\xff\xff\x7f" + whole[-4:],
        "magic": whole[:-4] + b"NONE",
    }
    (at / "b.parquet").write_bytes(parts[broken])
    drop(at / "late.parquet", rows(20, 3))
    assert look(watch) == ["a.parquet", "late.parquet"]
    assert 'file "b.parquet" is left out' in told_of(watch, monkeypatch)
    assert folder_watch.describe({"location": str(at)}).rows == 6


@pytest.mark.parametrize("said", [1 << 62, (1 << 32) + 1, -5])
def test_i13_a_footer_that_says_any_number_of_rows_leaves_out_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: int
) -> None:
    at = tmp_path / "drop"
    drop(at / "a.parquet", rows(1, 3))
    watch = watch_of(at)
    whole = drop(at / "b.parquet", rows(10_000, 4321), group_rows=5000).read_bytes()
    begins = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    # A number of 64 bits, and the list of the groups behind it.
    footer = whole[begins:-8].replace(_said(4321), _said(said), 1)
    (at / "b.parquet").write_bytes(whole[:begins] + footer + len(footer).to_bytes(4, "little") + whole[-4:])
    assert pq.read_metadata(at / "b.parquet").num_rows == said
    assert look(watch) == ["a.parquet"]
    assert f"its footer says {said} rows" in told_of(watch, monkeypatch)


def _said(rows: int) -> bytes:
    """Return the field of a footer that says how many rows a file has, in Thrift's compact protocol."""
    left, found = ((rows << 1) ^ (rows >> 63)) & ((1 << 64) - 1), bytearray(b"\x16")
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes(found) + bytes([left]) + b"\x19"


def test_i13_a_log_may_say_any_number_of_rows() -> None:
    few = pieces_of([(DataFile("a", {}), 2 * PIECE_ROWS + 1), (DataFile("b", {}), 0), (DataFile("c", {}), None)])
    assert [(one.file.path, one.first, one.end) for one in few] == [
        ("a", 0, PIECE_ROWS),
        ("a", PIECE_ROWS, 2 * PIECE_ROWS),
        ("a", 2 * PIECE_ROWS, 2 * PIECE_ROWS + 1),
        ("c", 0, None),
    ]
    with pytest.raises(RefusedTableError, match="say more rows than"):
        pieces_of([(DataFile("a", {}), 1 << 62)])


def test_a_page_that_cannot_be_decoded_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    at = tmp_path / "drop"
    path = drop(at / "a.parquet", rows(1, 3000))
    relation = relation_of({"location": str(at)})
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 56 + whole[60:])
    with pytest.raises(RefusedTableError, match=r'file "a\.parquet" cannot be decoded'):
        list(read_rows(Files.of(folder_in(relation).place), relation, DataFile("a.parquet", {}), 0, None))


def test_a_worker_answers_some_questions_at_once() -> None:
    """Whoever asked may have gone, and what hangs has no end."""
    request: Any = type("Request", (), {"id": 7})()
    agent = Agent.__new__(Agent)
    agent.answering = Agent.__dataclass_fields__["answering"].default_factory()  # pyright: ignore[reportCallIssue]
    agent.respond = lambda _: None
    for _ in range(ANSWERED_AT_ONCE):
        assert agent.answering.acquire(blocking=False)
    response = agent._response(request)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(response, Rejected)
    assert response.again
    agent.answering.release()
    assert agent._response(request) is None  # pyright: ignore[reportPrivateUsage]


def test_i13_nothing_is_written_or_removed_behind_a_link(tmp_path: Path) -> None:
    other, table = tmp_path / "other", tmp_path / "table"
    other.mkdir()
    table.mkdir()
    (other / "file").write_text("mine")
    (table / "folder").symlink_to(other)
    files = Files.of(DeltaPlace(location=str(table)))
    for path in ("folder/file", "../other/file", f"{other}/file"):
        for change in (files.remove, files.remove_folder, partial(files.put, content=b""), files.make_folders):
            with pytest.raises(PermissionError, match=r"leads out of|no path in the table"):
                change(path)
    # A file is written under this name first.
    (table / "mark.part").symlink_to(other / "file")
    files.put("mark", b"yours")
    files.remove("folder")
    assert (other / "file").read_text() == "mine"
    assert [one.name for one in table.iterdir()] == ["mark"]


def test_i13_a_column_with_a_long_name_leaves_out_its_file(tmp_path: Path) -> None:
    """The names of 60 links to one file of 15 MB took the worker 2.4 GB."""
    at = tmp_path / "drop"
    drop(at / "a.parquet", rows(1, 3))
    watch = watch_of(at)
    drop(at / "b.parquet", rows(10, 3).append_column("x" * 256, [["y"] * 3]))
    assert look(watch) == ["a.parquet"]
    with pytest.raises(RefusedTableError, match="the name of a column has more than 255 characters"):
        folder_watch.describe({"location": str(at)})


def test_i13_a_path_too_long_for_a_key_leaves_out_its_file(tmp_path: Path) -> None:
    """The state store keeps paths as keys: one file of 3,700 letters broke its table."""
    at = tmp_path / "drop"
    drop(at / "a.parquet", rows(1, 3))
    watch = watch_of(at)
    drop(
        at / ("x" * 250 + "/") / ("y" * 250 + "/") / ("z" * 250 + "/") / ("é" * 120) / ("w" * 40) / "b.parquet",
        rows(10, 3),
    )
    drop(at / "c.parquet", rows(20, 3))
    assert look(watch) == ["a.parquet", "c.parquet"]
