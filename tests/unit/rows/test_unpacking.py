"""Packed bodies."""

import asyncio
import gzip
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.domain.errors import Invalid
from service.domain.uploading import Spool
from service.operations.rows import bulk, unpacking
from service.operations.rows.unpacking import PIECE_BYTES, text, unpacked
from service.operations.world import pieces_turns


async def cut(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_u10_members_are_unpacked_wherever_they_are_cut(size: int) -> None:
    body = gzip.compress(b"a,b\n") + gzip.compress(b"") + gzip.compress(b"1,2\n")
    assert b"".join([piece async for piece in unpacked(cut(body, size), pieces_turns(1))]) == b"a,b\n1,2\n"


async def test_u10_pieces_are_bounded_however_well_a_body_is_packed() -> None:
    """I8."""
    packed = cut(gzip.compress(bytes(40 * PIECE_BYTES)), 1 << 20)
    pieces = [len(piece) async for piece in unpacked(packed, pieces_turns(1))]
    assert sum(pieces) == 40 * PIECE_BYTES
    assert max(pieces) <= PIECE_BYTES


async def test_u10_output_that_needs_no_more_input_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "PIECE_BYTES", 1)
    body = gzip.compress(b"x" * 1000)
    assert b"".join([piece async for piece in unpacked(cut(body, 3), pieces_turns(1))]) == b"x" * 1000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (gzip.compress(b"rows")[:-3], "the body ends within its gzip stream"),
        (b"id,name\n", "the body is not the gzip that its Content-Encoding says"),
    ],
)
async def test_u10_what_is_no_gzip_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        [piece async for piece in unpacked(cut(body, 5), pieces_turns(1))]


async def test_u10_text_that_is_packed_names_the_header() -> None:
    with pytest.raises(Invalid, match="send it with Content-Encoding: gzip"):
        [piece async for piece in text(cut(gzip.compress(b"x"), 100))]
    assert [piece async for piece in text(cut(b"x", 100))] == [b"x"]


async def test_i13_each_piece_of_a_body_takes_a_turn() -> None:
    """A hundred bodies that were unpacked at the same time left the event loop no time for others."""
    pieces, body = pieces_turns(1), gzip.compress(b"a,b\n")
    stream = unpacked(cut(body, 1 << 20), pieces)
    async with pieces.turn("another"):
        unpacking_it = asyncio.create_task(anext(stream))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(unpacking_it), 0.05)
    assert await unpacking_it == b"a,b\n"
    async with pieces.turn("another"):
        receiving = bulk.received(Spool(), cut(b"a,b\n", 7), bulk.Form.CSV, pieces=pieces, caller="one")
        receiving_it = asyncio.create_task(receiving.__aenter__())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(receiving_it), 0.05)
    assert (await receiving_it).path.read_bytes() == b"a,b\n"
    await receiving.__aexit__(None, None, None)


async def test_s9_files_of_a_killed_service_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They outlived it in a pod, whose files stay when its container starts again."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, new = tmp_path / "tidefill-load-killed", tmp_path / "tidefill-load-new"
    killed.write_bytes(b"rows")
    new.touch()
    stream = cut(b"a,b\n", 7)
    async with bulk.received(Spool(), stream, bulk.Form.CSV, pieces=pieces_turns(1), caller="one") as body:
        bulk.remove_abandoned()
        assert body.path.read_bytes() == b"a,b\n"
        assert not killed.exists()
        assert new.exists()
