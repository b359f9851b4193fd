"""Deliveries to a target: a view in a lake is created and verified by them (I6, I12, I14)."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from service.protocol.barrier import Barrier, BarrierKind
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation
from service.protocol.relation import RelationKind
from tests.support.lakes import folder
from tests.unit.workers.test_deltalake import RELATION, Table, prepare
from workers.connectors import delta_apart
from workers.connectors.delta_apart import ApartSink
from workers.connectors.deltalake import DeltaSink
from workers.connectors.port import GONE, MovedError
from workers.runners.delivery import Delivery
from workers.state_store.port import CLOSE, LIVE, PAGE

SLOW = "1 h"


Apart = Callable[[DeltaSink], ApartSink]


@pytest.fixture
def apart() -> Generator[Apart]:
    """Have sinks run in a process, which ends with the test."""
    yield ApartSink
    delta_apart._STANDING.of("").end()  # pyright: ignore[reportPrivateUsage]


def barrier(prev: int, curr: int, generation: int = 1) -> Barrier:
    return Barrier(
        graph=DATABASE_GRAPH,
        generation=Generation(generation),
        prev=Epoch(prev),
        curr=Epoch(curr),
        kind=BarrierKind.CHECKPOINT,
        interval_ms=1000,
    )


def test_i6_an_epoch_that_is_awaited_is_delivered_at_once(tmp_path: Path, apart: Apart) -> None:
    """A view is created when its target has all history, however long its interval is."""
    table = Table(folder(tmp_path), commit_interval=SLOW)
    delivery = Delivery(lambda generation: apart(table.sink(generation)))
    first = delivery.run(barrier(1, 2), 0.0, awaited=None)
    assert first is not None
    assert first == table.version
    assert delivery.sink is not None
    prepare(delivery.sink, 2, (PAGE, 1, "a"))
    assert delivery.run(barrier(2, 3), 1.0, awaited=None) is None
    assert not delivery.has(Epoch(2))
    assert delivery.run(barrier(3, 4), 2.0, awaited=Epoch(2)) == first + 1
    assert delivery.has(Epoch(2))
    assert table.rows == [(1, "a")]
    # Nothing is awaited any more.
    prepare(delivery.sink, 4, (LIVE, 2, "b"))
    assert delivery.run(barrier(4, 5), 3.0, awaited=Epoch(2)) is None
    assert delivery.run(barrier(4, 5), 3602.0, awaited=Epoch(2)) == first + 2


def test_i12_what_a_version_does_not_have_yet_is_pending(tmp_path: Path) -> None:
    table = Table(folder(tmp_path))
    sink = table.begin(0)
    prepare(sink, 1, (PAGE, 1, "a"), (PAGE, 2, "b"))
    version = sink.commit(Epoch(1))
    assert version is not None
    assert sink.pending(Epoch(9)) == (version, None)
    prepare(sink, 3, (CLOSE, 1, "a"), (LIVE, 1, "A"))
    prepare(sink, 4, (CLOSE, 2, "b"), (CLOSE, 1, "A"), (LIVE, 1, "B"))
    prepare(sink, 6, (LIVE, 7, "not yet committed"))
    assert changes_of(sink, version) == [(1, "B", False), (2, "b", True)]
    # The state store does not know the new version yet: its epoch is not committed.
    newer = sink.commit(Epoch(3))
    assert newer == version + 1
    assert changes_of(sink, version + 1) == [(1, "B", False), (2, "b", True)]
    sink.commit(Epoch(6))
    with pytest.raises(MovedError):
        sink.pending(Epoch(5))


def changes_of(sink: DeltaSink, version: int) -> list[tuple[int, str, bool]]:
    at, found = sink.pending(Epoch(5))
    assert at == version
    assert found is not None
    return sorted((one["Id"], one["v"], one[GONE]) for one in found.to_pylist())


def test_a_view_in_a_lake_is_followed_by_its_change_feed(tmp_path: Path) -> None:
    """Its key is there, also if users do not see it. A sink has what users see."""
    hidden = RELATION.columns[0].model_copy(update={"hidden": True})
    view = RELATION.model_copy(
        update={"kind": RelationKind.MATERIALIZED_VIEW, "columns": (hidden, RELATION.columns[1])}
    )
    assert [one.name for one in view.delivered] == ["Id", "v"]
    assert [one.name for one in view.model_copy(update={"kind": RelationKind.SINK}).delivered] == ["v"]
    table = Table(folder(tmp_path), view)
    assert table.lake.table().metadata().configuration["delta.enableChangeDataFeed"] == "true"


def test_a22_a_table_of_changes_has_one_writer(tmp_path: Path) -> None:
    """Also while it has no rows, and until that writer is dropped."""
    lake = folder(tmp_path)
    first = Table(lake, app="tidefill-first")
    for kind in ("upsert", "append-only"):
        with pytest.raises(ValueError, match="is that of another view or sink"):
            Table(lake, app="tidefill-second", type=kind)
    first.begin(0).clean_up()
    second = Table(lake, app="tidefill-second")
    with pytest.raises(ValueError, match="is that of another view or sink"):
        Table(lake, app="tidefill-first")
    second.begin(0)
    several = folder(tmp_path / "several")
    for number in range(2):
        Table(several, app=f"tidefill-{number}", type="append-only")
