"""F6: a table with all columns takes up a new one, wherever the log first has it. The test stands for the leader."""

from dataclasses import replace
from typing import Any

import pytest

from service.domain.new_columns import new_columns
from tests.support.cdc_steps import NUMBERS, STAMPED, Started, execute, finish
from tests.support.real_cdc import CdcWorld, Followed

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


async def both(world: CdcWorld, table: Followed) -> tuple[list[Any], list[Any]]:
    names = ", ".join(name for name, _ in table.columns)
    outside = world.external.admin.execute(f"select {names} from {table.name} order by id".encode()).fetchall()
    return [row[: len(table.columns)] for row in await world.rows(table)], outside


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("table", [NUMBERS, STAMPED])
async def test_f6_a_new_column_loses_no_value(started: Started, table: Followed, kills: bool) -> None:
    name, fragment = table.name, table.fragment
    async with started(table, rows=9) as world:
        world.model = False
        await finish(world)
        # The log has the first value in the transaction that adds the column.
        execute(
            world,
            f"begin; alter table {name} add column c int; update {name} set c = 1, n = 70 where id = 1; commit",
            f"insert into {name} (id, n, t, c) values (50, 5, 'new', 2)",
        )
        await world.epoch()
        await world.epoch(interval_ms=20)
        assert world.broken == {}
        there, outside = await both(world, table)
        assert there == outside
        # The leader decides, and adds the column. Then it dies before the reload.
        scan = world.scan(table).model_copy(update={"all_columns": True})
        assert new_columns(scan, table.relation).wanted == ("c",)
        wide = replace(table, columns=(*table.columns, ("c", "int")))
        added = wide.relation.column("c")
        relation = table.relation.model_copy(update={"columns": (*table.relation.columns, added)})
        assert new_columns(scan, relation).wanted == ()
        await world.store.tables.add_column(relation)
        world.reloads[fragment], world.external.tables[name] = scan, wide
        execute(world, f"update {name} set c = 3, n = 71 where id = 2", f"delete from {name} where id = 3")
        await world.recover()
        await world.epoch(kill=kills)
        await world.epoch()
        there, outside = await both(world, wide)
        assert there == [(*row[:-1], None) for row in outside]
        before = world.committed
        execute(world, f"update {name} set c = 4 where id = 4", f"update {name} set id = 60 where id = 5")
        place, reload = world.places[name], world.reload(wide)
        if kills:
            # The plan of the next worker is still the old one. The command is carried out again.
            new_place, world.places[name], world.reloads[fragment] = world.places[name], place, scan
            await world.epoch(reload, kill=True, interval_ms=50)
            await world.epoch(interval_ms=50)
            world.places[name], world.reloads[fragment] = new_place, reload.fragments[fragment]
        await world.epoch(reload, interval_ms=50)
        execute(world, f"update {name} set c = 5 where id = 6", f"update {name} set c = null where id = 50")
        for number in range(40):
            if fragment in world.finished:
                break
            await world.epoch(kill=kills and number % 2 == 0, interval_ms=50)
        assert fragment in world.finished
        assert world.broken == {}
        there, outside = await both(world, wide)
        assert there == outside
        assert world.keys[wide.relation.id] == len(there)
        # A row without a value of the new column, and that was not changed, has no new version. Row 50 has one if its
        # page was read before its value was taken away.
        made = f"select id from state.t_{table.number} where _from > {before} and _to = 9223372036854775807"
        assert {int(str(row[0])) for row in await world.store.rows(made)} - {50} == {1, 2, 4, 6, 60}
        execute(world, f"insert into {name} (id, n, t, c) values (99, 9, 'after', 9)")
        await world.epoch()
        there, outside = await both(world, wide)
        assert there == outside


async def test_f6_a_shape_from_before_the_offset_breaks_nothing(started: Started) -> None:
    """A slot that is confirmed later describes the table again as it was before the offset."""
    async with started(NUMBERS, rows=9) as world:
        world.model = False
        await finish(world)
        execute(world, "begin; alter table numbers add column c int; update numbers set c = 1 where id = 1; commit")
        await world.epoch()
        execute(world, "alter table numbers add column d text not null default 'given'")
        execute(world, "create table other (id int)", "insert into other values (1)")
        await world.epoch()
        await world.epoch()
        execute(world, "update numbers set c = 3, n = 77 where id = 2")
        await world.epoch()
        assert world.broken == {}
        there, outside = await both(world, NUMBERS)
        assert there == outside
