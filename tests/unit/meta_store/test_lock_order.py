"""The watch over the order of locks would have seen the three deadlocks of F2, and has a place for every table."""

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert

from service.meta_store.schema.all_tables import METADATA
from service.meta_store.schema.core import command, graph, job, relation
from service.meta_store.schema.indexes import stored_index
from service.meta_store.schema.lock_order import LOCK_ORDER, RELATION_ITSELF, SINGLE_WRITER
from service.meta_store.schema.sources import source, source_cleanup
from tests.support.lock_order import Watched, locks_of

ADDED = insert(source_cleanup).values(source=1, what="slot").on_conflict_do_nothing()


def wrong(*statements: Any) -> Sequence[str]:
    """Return what is out of order in a transaction of these statements."""
    watched = Watched()
    for statement in statements:
        for lock in locks_of(statement, {}):
            watched.lock(lock)
    return watched.wrong


def stored(relation_id: int) -> Any:
    return insert(stored_index).values(relation=relation_id, shape="{}", state="CREATING").on_conflict_do_nothing()


def test_f2_every_table_has_a_place_in_the_order() -> None:
    tables = {table.name for table in METADATA.tables.values()}
    assert {*LOCK_ORDER, *SINGLE_WRITER} - {RELATION_ITSELF} == tables
    assert len(set(LOCK_ORDER)) == len(LOCK_ORDER)


def test_f2_a_the_commit_of_an_offset_that_goes_on_to_the_job_is_seen() -> None:
    """The drop has the job, and its clean-up refers to the source."""
    held = select(source.c.relation).with_for_update(of=source)
    found = wrong(held, update(job).where(job.c.id == 1).values(progress_text="1%"))
    assert found == [
        "source is locked FOR UPDATE, though foreign keys refer to it",
        "job (NO KEY UPDATE) after source (UPDATE)",
    ]
    assert wrong(update(job).values(state="Dropping"), held.with_for_update(of=source, key_share=True), ADDED) == []


def test_f2_b_the_loop_that_shows_an_index_after_its_stored_index_is_seen() -> None:
    shown = update(relation).where(relation.c.id == 7).values(shown=True)
    found = wrong(select(stored_index).with_for_update(), shown)
    assert found == ["relation (NO KEY UPDATE) after stored_index (UPDATE)"]
    assert wrong(shown, select(stored_index).with_for_update()) == []


def test_f2_c_inserts_of_stored_indexes_in_another_order_are_seen() -> None:
    assert wrong(stored(3), stored(2)) == ["stored_index (2, '{}') after (3, '{}')"]
    assert wrong(stored(2), stored(3)) == []


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([select(job.c.id).with_for_update(skip_locked=True), update(job)], []),
        ([update(graph), select(job.c.id).with_for_update(skip_locked=True), update(job)], []),
        ([update(graph), update(job)], ["job (NO KEY UPDATE) after graph (NO KEY UPDATE)"]),
        ([update(job), update(graph), update(job)], []),
        ([insert(command).values(graph=1), update(job)], ["job (NO KEY UPDATE) after graph (KEY SHARE)"]),
        ([delete(source_cleanup), delete(source)], []),
    ],
    ids=["skipped", "skipped later", "late", "again", "by a foreign key", "a dropped source"],
)
def test_f2_what_waits_for_nobody_is_in_order(statements: Sequence[Any], expected: Sequence[str]) -> None:
    assert wrong(*statements) == expected
