"""A versioned store some of whose relations lie in a lake, and are read there in place.

The store has the version of such a table at each epoch, or the files of a folder (`service.protocol.relation.kept_of`).
Whatever reads a relation at an epoch, or its changes between two, so reads the table at a version, or between two.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

import pyarrow as pa

from service.protocol import delta, file_source
from service.protocol.delta import DeltaPlace
from service.protocol.delta_source import FIRST, ROWS
from service.protocol.file_source import Folder
from service.protocol.ids import Epoch, RelationId
from service.protocol.relation import PLACE, VERSION, Relation, kept_of, state_table, versions
from service.protocol.table_format import POSTGRES
from service.protocol.vnodes import Runs
from workers.backfill.positions import Block, PageSize, Span
from workers.backfill.stages import BoundStage
from workers.connectors.delta_rows import changes_of, page_of
from workers.connectors.folder_rows import changes_between, page_at
from workers.connectors.kinds import SecretOf, options_of
from workers.state_store.port import (
    CLOSE,
    LIVE,
    OPERATION,
    VNODE,
    ArrowPage,
    CopyingStore,
    SqlStore,
    StageSession,
    VersionedStore,
    Written,
)
from workers.state_store.wire import read_schema

_FEW: Final = PageSize(10, exact=False)


def located(relation: Relation, secret_of: SecretOf) -> Relation:
    """Return a relation with the values of the secrets by which its lake is reached. They are stored nowhere."""
    if relation.lake is None or not relation.lake.secrets:
        return relation
    lake = relation.lake.model_copy(update={"options": options_of(relation.lake, secret_of), "secrets": {}})
    return relation.model_copy(update={"lake": lake})


def place_of(relation: Relation) -> DeltaPlace:
    """Return where a relation of a lake lies."""
    assert relation.lake is not None
    return delta.place_of(relation.lake.options)


def is_folder(relation: Relation) -> bool:
    """Whether a relation of a lake is a folder of files, and no table with versions."""
    return relation.lake is not None and relation.lake.name == file_source.NAME


def folder_in(relation: Relation) -> Folder:
    """Return the folder that a relation of a lake is."""
    assert relation.lake is not None
    return file_source.folder_of(relation.lake.options)


def first_version(relation: Relation) -> int:
    """Return the version with which a relation of a lake begins."""
    assert relation.lake is not None
    return int(relation.lake.options[FIRST])


def first_rows(relation: Relation) -> int:
    """Return about how many rows that version has."""
    assert relation.lake is not None
    return int(relation.lake.options.get(ROWS, "0"))


def version_row(version: int, before: int | None) -> Iterator[pa.RecordBatch]:
    """Yield what replaces the version of a table in the state store."""
    for operation, number in ((CLOSE, before), (LIVE, version)):
        if number is not None:
            columns = {
                OPERATION: pa.array([operation], pa.int8()),
                VNODE: pa.array([0], pa.int16()),
                PLACE: pa.array([0], pa.int64()),
                VERSION: pa.array([number], pa.int64()),
            }
            yield pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, slots=True)
class PlacedStore:
    """A `CopyingStore`: each relation lies in the state store, `inner`, or in a lake."""

    capabilities: ClassVar = POSTGRES
    inner: CopyingStore

    def read_page(self, relation: Relation, block: Block, *, at: Epoch, size: PageSize) -> ArrowPage:
        """See `VersionedStore`."""
        if relation.lake is None:
            return self.inner.read_page(relation, block, at=at, size=size)
        if is_folder(relation):
            return page_at(self.inner, folder_in(relation), relation, at, block, size=size)
        return page_of(place_of(relation), relation, version_at(self.inner, relation, at), block, size=size)

    def has_rows(self, relation: Relation, count: int, *, at: Epoch) -> bool:
        """See `VersionedStore`. Spark computes what reads a lake, however many rows it has."""
        return relation.lake is not None or self.inner.has_rows(relation, count, at=at)

    def changed(self, relation: Relation, *, after: Epoch, upto: Epoch) -> bool:
        """See `VersionedStore`."""
        return self.inner.changed(kept_of(relation), after=after, upto=upto)

    def read_changes(
        self, relation: Relation, *, after: Epoch, upto: Epoch, runs: Runs
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """See `VersionedStore`. Changes in a lake have no vnode, so all of them are read, whatever `runs` says."""
        if relation.lake is None:
            return self.inner.read_changes(relation, after=after, upto=upto, runs=runs)
        if not any(first == 0 for first, _ in runs):
            return iter(())
        if is_folder(relation):
            return changes_between(self.inner, folder_in(relation), relation, after, upto)
        version = version_at(self.inner, relation, upto)
        if version is None:
            return iter(())
        return changes_of(place_of(relation), relation, version_at(self.inner, relation, after), version)

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """See `VersionedStore`."""
        return self.inner.write(relation, epoch, rows)

    def staging(
        self, bound: BoundStage, epoch: Epoch, *, allowed_seconds: float | None = None
    ) -> AbstractContextManager[StageSession]:
        """See `CopyingStore`."""
        return self.inner.staging(bound, epoch, allowed_seconds=allowed_seconds)


@dataclass(frozen=True, slots=True)
class TableAt:
    """A table in a lake at a version, whatever epoch is asked for."""

    version: int

    def read_page(
        self,
        relation: Relation,
        block: Block,
        *,
        at: Epoch,  # noqa: ARG002 - see above
        size: PageSize,
    ) -> ArrowPage:
        """See `Pages`."""
        return page_of(place_of(relation), relation, self.version, block, size=size)


def kept_versions(store: SqlStore, relation: Relation) -> Sequence[int]:
    """Return the versions of a relation of a lake that epochs may still read: those that vacuum has left."""
    stored = versions(relation.id, relation.name)
    query = f"select _vnode, {PLACE}, {VERSION} from {state_table(relation.id)}"
    batches = store.read_sql(query, read_schema(stored))
    return [int(one) for batch in batches for one in batch.column(VERSION).to_pylist() if one is not None]


def version_at(store: VersionedStore, relation: Relation, at: Epoch) -> int | None:
    """Return the version that a relation of a lake has at a committed epoch, None before it has any."""
    return _version_at(store, relation.id, relation.name, at)


# A committed epoch keeps its version. A task reads many pages of it.
@lru_cache(maxsize=64)
def _version_at(store: VersionedStore, relation: RelationId, name: str, at: Epoch) -> int | None:
    page = store.read_page(versions(relation, name), (Span(0),), at=at, size=_FEW)
    found: list[Any] = [one for batch in page.batches for one in batch.column(VERSION).to_pylist()]
    return found[0] if found else None
