"""The changes that tasks prepared for a Delta table: in portions that fit into memory, and of each key the last."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from workers.connectors.delta_files import Files
from workers.connectors.delta_writer import Note
from workers.connectors.port import GONE
from workers.state_store.port import CLOSE, OPERATION

_PLACE: Final = "_tidefill_place"
MERGED_ROWS: Final = 1_000_000
MERGED_BYTES: Final = 128 << 20
"""The most changes that a merge takes into memory, unless one epoch has more. They are copied some times there."""


def portions(notes: Iterable[Note]) -> Iterator[Sequence[Note]]:
    """Divide the changes of many epochs, as after an outage, into those of some epochs each."""
    portion: list[Note] = []
    for _, some in groupby(notes, key=lambda note: note.epoch):
        epoch = list(some)
        both = [*portion, *epoch]
        rows, memory = sum(note.rows for note in both), sum(note.memory for note in both)
        if portion and (rows > MERGED_ROWS or memory > MERGED_BYTES):
            yield portion
            both = epoch
        portion = both
    if portion:
        yield portion


def net(files: Files, notes: Sequence[Note], key: Sequence[str]) -> pa.Table:
    """Return the last change of each key, of files in the order of their epochs."""
    ordered: list[pa.Table] = []
    for _, some in groupby(notes, key=lambda note: note.epoch):
        changes = pa.concat_tables([files.table(note.path) for note in some])
        # In one epoch, what ended comes before what began.
        closes = _closes(changes)
        ordered += [changes.filter(closes), changes.filter(pc.invert(closes))]
    changes = pa.concat_tables(ordered)
    place = pa.array(range(changes.num_rows), pa.int64())
    groups = changes.select(list(key)).append_column(_PLACE, place).group_by(list(key)).aggregate([(_PLACE, "max")])
    last = changes.take(groups.column(f"{_PLACE}_max"))
    return last.drop_columns([OPERATION]).append_column(GONE, _closes(last))


def _closes(changes: pa.Table) -> Any:
    return pc.equal(changes.column(OPERATION), pa.scalar(CLOSE, pa.int8()))
