"""The changes of a stage take no longer than others may be made to wait for them (I13)."""

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace

import psycopg
import pytest

from tests.support.stage_chains import Chains
from tests.support.state_store import prepared_store
from workers.backfill.stages import BoundStage
from workers.engines.stages import StageEngine
from workers.runners.failure import explain
from workers.state_store.connections import STAGING
from workers.state_store.port import TooSlowError
from workers.state_store.postgres import PostgresStore

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]


@pytest.fixture
async def chains(database_url: str) -> AsyncGenerator[Chains]:
    async with prepared_store(database_url) as store:
        made = Chains(store, {"t": "create table t (id bigint, k bigint, primary key (id))"})
        await made.create()
        yield made


async def test_s2_a_stage_that_takes_too_long_fails_by_its_own_fault(chains: Chains) -> None:
    """Changed rows meet 2000 others at a hot key."""
    await chains.change("insert into t select n, 1 from generate_series(1, 2000) n")
    chain = await chains.add("select count(*) as n from t a join t b on a.k = b.k where a.id < 100")
    (link,) = chain.links
    store = link.engine.store
    assert isinstance(store, PostgresStore)
    link.engine = StageEngine(replace(store, stage_timeout_ms=1), link.bound, link.engine.copiers)
    await chains.change("update t set k = 1 - k where id < 1000")
    before = chains.epoch, chain.windowed
    with pytest.raises(TooSlowError, match=r"stage_timeout_ms \(1\)") as caught:
        chains.follow(chain)
    assert explain(caught.value)[0], "the graph would try again for ever"
    assert (chain.windowed, chains.epoch) == (before[1], before[0] + 1)
    link.engine = StageEngine(store, link.bound, link.engine.copiers)
    assert await chains.differs(chain, followed=True) == (Counter(), Counter())


async def test_i13_a_page_of_history_that_takes_too_long_fails_by_its_own_fault(chains: Chains) -> None:
    """Only changes had a limit: two pages of a view held up everybody for 30 s each.

    Postgres gives another reason for a command that ends as its timeout expires, so short ones get time enough.
    """
    await chains.change("insert into t select n, 1 from generate_series(1, 5000) n")

    def hasty(store: PostgresStore, bound: BoundStage) -> StageEngine:
        return StageEngine(replace(store, stage_timeout_ms=50), bound, chains.copiers)

    with pytest.raises(TooSlowError, match=r"stage_timeout_ms \(50\)"):
        await chains.add("select count(*) as n from t a join t b on a.k = b.k", hasty)


def test_i13_temporary_files_of_a_stage_have_a_limit(database_url: str) -> None:
    """A view of long texts wrote 7 GB of them in 47 s. A view that exceeds the limit would do so again."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in STAGING:
            connection.execute(statement)
        assert connection.execute("show temp_file_limit").fetchone() == ("8GB",)
        connection.execute("set temp_file_limit = '64kB'")
        connection.execute("set work_mem = '64kB'")
        sorting = "select count(*) from (select n from generate_series(1, 100000) n order by -n) sorted"
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded) as caught:
            connection.execute(sorting)
        assert explain(caught.value)[0]
