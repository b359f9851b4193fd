"""A storm over tables and views of Postgres and of a lake, Postgres tables that are followed into one, and files that
are dropped: changes, kills, targets that are taken away and given back, limits, and relations that come and go. Until
the time is over, all of them are equal every few rounds.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.mirrored_lake import Mirrored, in_lake, until_has
from tests.support.production import External, external_postgres
from tests.support.service import ProblemError, Service
from tests.support.soaking import seeds
from tests.support.storm_outside import Outside
from tests.support.waiting import until

pytestmark = pytest.mark.soak

SALES: Final = {"sales": "CREATE TABLE sales (id bigint primary key, city text, amount numeric(15,2))"}
CITIES: Final = ("Oslo", "Bergen", "Rome", "Lima")
RANKED: Final = (
    "SELECT name, id, amount, row_number() OVER (PARTITION BY name ORDER BY amount DESC, id) AS place FROM joined j"
)
VIEWS: Final = {
    "joined": ("s.id, s.amount, c.name", "sales s JOIN cities c ON c.city = s.city"),
    "grouped": ("city, count(*) AS n, sum(amount)::numeric(20,2) AS total", "sales GROUP BY city"),
    "placed": ("name, id, amount", f"({RANKED}) r WHERE place <= 3"),
    "mixed": ("j.id, j.name, k.note", "joined j JOIN stock k ON k.id = j.id"),
}
IN_LAKE: Final = ("joined", "placed")
TARGETS: Final = (*IN_LAKE, "sent", "items", "paired")
STEPS: Final = 8
"""Steps between two comparisons."""


def test_i3_i12_i14_a_storm_over_a_lake(service: Service, tmp_path: Path) -> None:
    there = service.data_dir.parent / "production"
    there.mkdir(mode=0o711)
    with external_postgres(there) as external:
        for seed in seeds():
            storm = _Storm(service, external, tmp_path / str(seed), Random(seed))
            storm.begin()
            for _ in range(3):
                for _ in range(STEPS):
                    storm.step()
                storm.compare()
            storm.end()


class _Storm:
    def __init__(self, service: Service, external: External, folder: Path, random: Random) -> None:
        self.service, self.folder, self.random = service, folder, random
        self.outside = Outside(service, external, folder)
        self.tables = Mirrored(service, folder / "lake", SALES)
        self.made = 0
        self.last = 300
        self.away: dict[Path, Path] = {}

    def begin(self) -> None:
        """Fill the tables, and create what follows them."""
        run = self.service.run
        run("ALTER SYSTEM SET barrier_interval_ms = 200")
        run(self.tables.mirror(SALES["sales"]))
        run("CREATE TABLE cities (city text PRIMARY KEY, name text)")
        run("CREATE TABLE stock (id bigint PRIMARY KEY, note text)")
        for one in CITIES:
            run(f"INSERT INTO cities VALUES ('{one}', '{one[:2]}')")
        run("INSERT INTO stock SELECT g, 'n' || g FROM generate_series(1, 200) g")
        run(self.tables.mirror("INSERT INTO sales SELECT g, 'Oslo', g % 17 FROM generate_series(1, 300) g"))
        self.service.flush()
        self.tables.create()
        for name, (columns, source) in VIEWS.items():
            place = self._place(name) if name in IN_LAKE else ""
            run(f"CREATE MATERIALIZED VIEW {name} {place} AS SELECT {columns} FROM {source}")
        run(f"CREATE SINK sent FROM grouped WITH (connector = 'deltalake', location = '{self.folder / 'sent'}',"
            " type = 'upsert', primary_key = 'city', commit_interval = '200 ms')")  # fmt: skip
        self.outside.create()

    def step(self) -> None:
        """Do one thing."""
        steps: list[Callable[[], None]] = [self._change] * 4
        steps += [self._kill_worker, self._kill_service, self._take_away, self._limit, self._come_and_go, self._select]
        chosen = self.random.choice(steps)
        sys.stdout.write(f"{chosen.__name__.lstrip('_')} ")
        sys.stdout.flush()
        chosen()

    def compare(self) -> None:
        """Give all targets back, and wait until everything is equal."""
        self._give_back()
        self.tables.sync(self.random, SALES)
        for name in VIEWS:
            self.service.until_created(name)
            query = self._wanted(name)
            columns = [one["name"] for one in self.service.run(f"{query} LIMIT 0")["columns"]]
            expected = sorted(map(tuple, self.service.sql(query)), key=repr)
            until_has(self.service, name, partial(self._found, name, columns), expected)
            assert expected, name
        sent = sorted(map(tuple, self.service.sql("SELECT city, n, total FROM grouped")), key=repr)
        until(
            lambda: in_lake(self.folder / "sent", ["city", "n", "total"]) == sent, what="the sink has what is grouped"
        )
        self.outside.compare()
        sys.stdout.write("equal\n")

    def end(self) -> None:
        """Drop everything: nothing is left but the rows that others own."""
        self.outside.drop()
        self.service.run("DROP SINK sent")
        for name in reversed(VIEWS):
            self.service.run(f"DROP MATERIALIZED VIEW {name}")
        for name in ("sales", "m_sales", "cities", "stock"):
            self.service.run(f"DROP TABLE {name}")
        left = "select relname from pg_class where relnamespace = 'state'::regnamespace and relname ~ '^t_'"
        until(lambda: not self.service.stored(left), what=lambda: self.service.stored(left))
        graphs = "select id from tidefill.graph where id <> 1"
        until(lambda: not self.service.stored(graphs), what="no graph is left")
        assert not list(self.folder.glob("*/_tidefill/**/*.parquet"))

    def _place(self, name: str) -> str:
        return f"USING delta LOCATION '{self.folder / name}' WITH (commit_interval = '200 ms')"

    def _wanted(self, name: str) -> str:
        """Return the query of a view over the tables of Postgres alone."""
        columns, source = VIEWS[name]
        joined = "(SELECT {} FROM {})".format(*VIEWS["joined"])
        return self.tables.mirror(f"SELECT {columns} FROM {source.replace('joined', joined)}")

    def _found(self, name: str, columns: list[str]) -> list[tuple[object, ...]]:
        if name in IN_LAKE:
            return in_lake(self.folder / name, columns)
        return sorted(map(tuple, self.service.sql(f"SELECT {', '.join(columns)} FROM {name}")), key=repr)

    def _change(self) -> None:
        random, run = self.random, self.service.run
        low = random.randrange(self.last)
        city = random.choice(CITIES)
        statements = (
            f"UPDATE sales SET amount = amount + 1 WHERE id BETWEEN {low} AND {low + 40}",
            f"UPDATE sales SET city = '{city}' WHERE id BETWEEN {low} AND {low + 30}",
            f"DELETE FROM sales WHERE id BETWEEN {low} AND {low + 5}",
            f"INSERT INTO sales SELECT g, '{city}', g % 13 FROM generate_series({self.last + 1}, {self.last + 20}) g",
        )
        chosen = random.choice(statements)
        self.last += 20 if chosen.startswith("INSERT") else 0
        run(self.tables.mirror(chosen))
        run(f"UPDATE cities SET name = name || '{random.choice('ab')}' WHERE city = '{city}'")
        run(f"DELETE FROM stock WHERE id % 50 = {random.randrange(50)}")
        self.service.flush()
        self.tables.sync(random, SALES)
        self.outside.change(random)

    def _kill_worker(self) -> None:
        until(lambda: len(self.service.workers()) == 1, what="there is a worker to kill")
        self.service.kill_worker()

    def _kill_service(self) -> None:
        self.service.kill()
        self.service.wait_killed()
        self.service.restart()

    def _take_away(self) -> None:
        """Move the table of a view, of the sink or of what is followed to where nobody finds it, or give all back."""
        if self.away:
            self._give_back()
            return
        target = self.folder / self.random.choice(TARGETS)
        hidden = target.with_name(f"{target.name}.away")
        target.rename(hidden)
        self.away[target] = hidden

    def _give_back(self) -> None:
        for target, hidden in self.away.items():
            hidden.rename(target)
        self.away.clear()

    def _limit(self) -> None:
        if self.away:
            return  # the graph of a target that is away carries no command
        job = self.service.job(self.random.choice(list(VIEWS)))
        for verb in ("pause", "resume"):
            self.service.post(f"/v1/jobs/{job}/{verb}")
        name = self.random.choice(IN_LAKE)
        self.service.run(f"ALTER MATERIALIZED VIEW {name} SET PARALLELISM = {self.random.randint(1, 4)} DEFERRED")

    def _come_and_go(self) -> None:
        """Create a view in the lake, and drop it whether it is created or not."""
        self.made += 1
        name = f"extra_{self.made}"
        text = f"CREATE MATERIALIZED VIEW {name} {self._place(name)} AS SELECT id, amount FROM sales WHERE id % 3 = 0"
        self.service.run(text, background_ddl="true")
        if self.random.random() < 0.5:
            self.service.until_created(name)
        self.service.run(f"DROP MATERIALIZED VIEW {name}")

    def _select(self) -> None:
        """A SELECT over the lake is answered, or says why not."""
        try:
            self.service.sql("SELECT name, count(*) FROM joined GROUP BY name ORDER BY name")
        except ProblemError as error:
            if not self.away and error.problem["status"] not in {422, 503}:
                raise
