"""Define the protocols of connectors in a worker: a source reads by splits, a sink takes rows.

To add one, write a module with a `SplitReader` or a `Sink`, list it in `workers.connectors.kinds`, and list it
with the check of its options in `service.domain.connectors`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import pyarrow as pa

from service.protocol.ids import Epoch, Generation
from service.protocol.relation import TRAVEL_PREFIX, Relation
from workers.state_store.port import Written

GONE: Final = f"{TRAVEL_PREFIX}gone"
"""The column of a pending change that says whether the row of its key is gone."""


KeptVersions = Callable[[], Sequence[int]]
"""Returns the versions of a table that epochs may still read. It asks the state store."""


class RefusedRowError(Exception):
    """The target of a sink cannot take a row, or a table that is read in place has one that none may have."""


class RefusedTableError(Exception):
    """A table cannot be read in place, or not any further. It never will."""


class MovedError(Exception):
    """A table outside is newer than what is asked for. The same question may be answered later."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table that is read in place: its newest version, its schema in the words of its format, and about how many rows
    it has.
    """

    version: int
    schema: str
    rows: int


class SinkWriter(Protocol):
    """Takes the rows of a sink's scan, in place of a versioned table. A small value, serialized into every task."""

    def write(self, relation: Relation, epoch: Epoch, rows: Iterable[pa.RecordBatch]) -> Written:
        """Prepare the rows of one actor at `epoch`. When this returns, they are durable, and nobody sees them.

        The first columns are `OPERATION` and `_vnode`, the others have their Spark types. Raises RefusedRowError.
        """
        ...


class Sink(Protocol):
    """A sink in one generation, as the worker sees it. The files of tasks are delivered after their commit (I14).

    The target knows up to which epoch it has everything. An error means that the target is away, or another one is at
    work: a next generation tries again.
    """

    @property
    def commit_seconds(self) -> float:
        """The least time between two deliveries."""
        ...

    @property
    def writer(self) -> SinkWriter:
        """The receiver of rows in tasks."""
        ...

    def begin(self, committed: Epoch) -> int | None:
        """Deliver what earlier generations prepared in epochs up to `committed`, and discard the rest for ever.

        Return the version that the target has now, None if it has none.
        """
        ...

    def commit(self, upto: Epoch) -> int | None:
        """Deliver what this generation prepared in epochs up to `upto`, which are committed. Again, it does nothing.

        Return the version that the target has now, None if nothing was delivered.
        """
        ...

    def pending(self, upto: Epoch) -> tuple[int, pa.Table | None]:
        """Return a version of the target, and the last change of each key that is prepared in epochs up to `upto`, and
        that this version does not have.

        With `GONE`, and None if there is none. Raises MovedError if the target has changes of later epochs, or gets
        some meanwhile.
        """
        ...

    def keep_up(self, kept: KeptVersions) -> None:
        """Do what keeps the target in shape, if it is due. `kept` returns the versions that epochs may still read."""
        ...

    def clean_up(self, *, purge: bool = False) -> None:
        """Remove what is prepared. The sink is dropped, and the target stays as it is. `purge` removes it, too.

        Raises ValueError if other programs may write to the target.
        """
        ...


@dataclass(frozen=True, slots=True)
class Consumed:
    """What the table of a followed table has: its version, about how many rows, and the epochs up to which it has all
    `changes`, and all rows of history (`pages`).
    """

    version: int
    rows: int
    changes: Epoch
    pages: Epoch


class Carried(Protocol):
    """The table outside of a followed table, in one generation, as the worker sees it.

    It gets the rows of a log in the state store that is committed. Any call may raise the errors of its storage, and
    MovedError if another one is at work: then `begin` comes next, which removes what was prepared.
    """

    @property
    def commit_seconds(self) -> float:
        """The least time between two commits."""
        ...

    @property
    def writer(self) -> SinkWriter:
        """The receiver of rows in tasks: PAGE for rows at new keys, LIVE and CLOSE for changes."""
        ...

    def begin(self) -> Consumed:
        """Shut out older generations, remove what they have prepared, and return what the table has."""
        ...

    def keep_up(self, kept: KeptVersions) -> None:
        """See `Sink`."""
        ...

    def commit(self, before: Consumed, upto: Epoch, prepared: int, *, truncated: bool) -> Consumed:
        """Commit what `writer` has prepared at `upto`: so many rows, all that the log has since `before`. If it was
        `truncated`, no other row stays.
        """
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a split, as Postgres texts in the order of the relation's columns, including hidden ones.

    `position` is where the next part begins. Only the connector interprets it. `over`: no row follows.
    """

    rows: Sequence[tuple[str | None, ...]]
    position: str
    over: bool


class SplitReader(Protocol):
    """Reads the splits of an external system. An epoch that runs again reads from the same positions again."""

    whole: ClassVar[bool]
    """Whether the first epoch reads all rows, whatever limits and pauses say."""

    def due(self, split: int, since_ms: int, upto_ms: int) -> int:
        """Return how many rows of a split an epoch may read. Its interval is given as Unix times in milliseconds."""
        ...

    def read(self, split: int, after: str | None, most: int) -> Part:
        """Read at most `most` rows of a split from the position `after` on. None is the beginning of the split."""
        ...


MakeReader = Callable[[Mapping[str, str], Relation], SplitReader]
"""Returns the reader of a table that is filled with these options."""
MakeSink = Callable[[Mapping[str, str], Relation, Generation], Sink]
"""Returns a sink with these options, for rows of this form."""
MakeCarried = Callable[[Mapping[str, str], Relation, Generation], Carried]
"""Returns the table with these options that a followed table of this form has."""
Describe = Callable[[Mapping[str, str]], TableShape]
"""Returns what a table is that shall be read in place. Raises RefusedTableError."""
Claim = Callable[[Mapping[str, str], Relation], None]
"""Makes a sink's target ready before its job begins. Raises ValueError with the reason if it cannot be used."""
