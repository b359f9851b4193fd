"""Sources and the tables that follow them, on a real meta store and beside a real external database."""

from collections.abc import AsyncGenerator, Iterator

import pytest

from service.operations import sources
from service.protocol.cdc import SourceReport
from service.protocol.plan import FragmentKind, FragmentPlan
from tests.support.external import PASSWORD, External, Following, external_database, following

pytestmark = pytest.mark.postgres

ORDERS = "create table orders (id bigint primary key, who varchar(20), paid numeric(12, 2), mood text[])"


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        one.run(ORDERS)
        yield one


@pytest.fixture
async def here(database_url: str, external: External) -> AsyncGenerator[Following]:
    async with following(database_url, external) as one:
        yield one


async def plan_of(here: Following, name: str) -> FragmentPlan:
    async with here.world.stores.begin() as tx:
        entry = await tx.catalog.named(name)
        assert entry is not None
        (plan,) = await tx.jobs.plans([entry.job])
    (fragment,) = plan.fragments
    return fragment


async def test_a_table_follows_and_its_source_moves_on_with_the_epochs(here: Following) -> None:
    external = here.external
    assert (await here.run(external.create_source())).tag == "CREATE_SOURCE"
    (slot,) = external.slots()
    (publication,) = external.publications()
    assert (await here.run("CREATE TABLE t (*) FROM pg TABLE 'public.orders'")).tag == "CREATE_TABLE"
    assert external.published() == [(publication, "public", "orders")]
    fragment = await plan_of(here, "t")
    assert fragment.kind is FragmentKind.CDC_SCAN
    scan = fragment.cdc
    assert scan is not None
    assert (scan.source.slot, scan.source.publication, scan.source.name) == (slot, publication, "pg")
    assert [(one.name, one.type) for one in scan.columns] == [
        ("id", "bigint"),
        ("who", "character varying(20)"),
        ("paid", "numeric(12,2)"),
        ("mood", "text[]"),
    ]
    assert (scan.split_column, len(scan.splits), scan.total) == ("id", 1, 0)
    report = SourceReport(source=scan.source.id, offset="1/2", undecided=(7, 9), lag_bytes=5, changes=3)
    here.reports = [report]
    await here.barrier()
    moved = (await plan_of(here, "t")).cdc
    assert moved is not None
    assert (moved.source.offset, moved.source.undecided) == ("1/2", (7, 9))
    connection = await sources.connection(here.world, scan.source.id)
    assert PASSWORD in connection.conninfo
    assert PASSWORD not in repr(connection)
    await here.run("DROP SOURCE pg CASCADE")
    assert (external.slots(), external.publications()) == ([], [])
