"""Tables follow an external Postgres under `pgbench` while worker, service and state store are killed, and the external
server is restarted, for as long as the soak lasts. In the end every table is the one that it follows, every view its
query, and nothing is left there once they are dropped (I1, I3, I9).
"""

import sys
import threading
from pathlib import Path
from random import Random

import pytest

from service.cli.demo_cdc import TABLES, Production, production
from tests.support.persistent_client import PersistentClient
from tests.support.production import External, source
from tests.support.service import ARRANGEMENT, Repeating, Service
from tests.support.soaking import first_seed, seconds
from tests.support.storm_kills import Killer
from tests.support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.e2e]

LIMITS = {"pgbench_accounts": ", backfill_rate_limit = 1000"}
"""So that history lasts for as long as there are kills."""
SPLIT = "backfill.parallelism = 2, backfill.num_rows_per_split = 50000"
VIEWS = {
    "rich": ("SELECT aid, bid, abalance FROM pgbench_accounts WHERE abalance > 1000", {}),
    "paid": ("SELECT id, tid, delta FROM pgbench_history WHERE delta > 0", ARRANGEMENT),
}
RESTARTS_EVERY = (20, 60)


def test_whatever_is_killed_the_tables_are_those_that_they_follow(service: Service, tmp_path: Path) -> None:
    random, over = Random(first_seed()), threading.Event()
    folder = service.data_dir.parent / "production"
    folder.mkdir(mode=0o711)
    with production(folder) as there:
        there.fill()
        there.start_load()
        client = PersistentClient(service, f"storm-{first_seed()}")
        external = External(there.server, there.url)
        _follow(client, external)
        killer = Killer(service, random, over)
        restarts = _rage(there, killer, random, over)
        service.wait_ready()
        sys.stdout.write(f"seed {first_seed()}: {dict(killer.kills)}, {restarts} restarts of the external server\n")
        sys.stdout.write(f"{client.select('SELECT * FROM rw_catalog.rw_cdc_progress')}\n")
        client.run("ALTER TABLE pgbench_accounts SET BACKFILL_RATE_LIMIT TO DEFAULT")
        until(lambda: not _unfinished(client), what=lambda: service.get("/v1/sources"))
        there.end_load()
        client.run("WAIT")
        for name in (*TABLES, *VIEWS):
            service.verified(name)
        for name in TABLES:
            client.run(f"DROP TABLE IF EXISTS {name} CASCADE")
        client.run("DROP SOURCE IF EXISTS pg")
        until(lambda: not external.slots() and not external.published(), what="nothing is left there")
    service.stop()


def _follow(client: PersistentClient, external: External) -> None:
    client.run(source(external))
    for name in TABLES:
        client.run(f"CREATE TABLE IF NOT EXISTS {name} (*) WITH ({SPLIT}{LIMITS.get(name, '')}) FROM pg TABLE '{name}'")
    for name, (query, session) in VIEWS.items():
        statement = f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name} AS {query}"
        client.call("POST", "/v1/sql", {"sql": statement, "session": {"background_ddl": "true", **session}})


def _rage(there: Production, killer: Killer, random: Random, over: threading.Event) -> int:
    restarts = 0
    left = seconds()
    pause = threading.Event()
    with Repeating(killer.turn) as killing:
        while left > 0 and killing.error is None:
            wait = random.uniform(*RESTARTS_EVERY)
            pause.wait(min(wait, left))
            left -= wait
            there.restart()
            restarts += 1
        over.set()
    killer.revive()
    return restarts


def _unfinished(client: PersistentClient) -> int:
    query = "SELECT count(*) FROM rw_catalog.rw_cdc_progress WHERE split_completed_count < split_total_count"
    return int(client.select(query)[0][0])
