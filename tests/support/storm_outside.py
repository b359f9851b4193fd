"""The surroundings of a storm over a lake: a live Postgres, of which a table is followed into a Delta table, and a
folder into which a program drops Parquet files.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from tests.support.drops import drop, rows
from tests.support.mirrored_lake import in_lake, shown, until_has
from tests.support.production import External, source
from tests.support.service import Service
from tests.support.waiting import until

CITIES: Final = ("Oslo", "Bergen", "Rome")
TABLES: Final = (
    "create table items (id bigint primary key, price numeric(10, 2), code text)",
    "create table events (id bigint primary key, city text, amount numeric(10, 2))",
)
"""The second one has the rows of all files, so that the server computes what a view has to be."""
ITEMS: Final = "select id, price, code from items"
PAIRED: Final = "select i.id, i.code, e.amount from items i join events e on e.id = i.id"
FILE_ROWS: Final = 40


@dataclass
class Outside:
    """The server, the folder, and what the service makes of them: `items` and `paired` in a lake, `events` in place."""

    service: Service
    external: External
    folder: Path
    files: int = 0

    def create(self) -> None:
        """Make what is followed, and what follows it."""
        self.external.clear()
        self.external.run(*TABLES, "insert into items select g, g % 7, 'c' || g % 5 from generate_series(1, 300) g")
        self.drop_file("Oslo")
        run, quick = self.service.run, "WITH (commit_interval = '200 ms')"
        items, paired = (f"USING delta LOCATION '{self.folder / name}'" for name in ("items", "paired"))
        run(source(self.external))
        run(f"CREATE TABLE items (*) {items} FROM pg TABLE 'public.items' {quick}")
        run(f"CREATE SOURCE drops WITH (connector = 'file', location = '{self.folder}')")
        run("CREATE TABLE events (*, PRIMARY KEY (id)) FROM drops TABLE 'events'")
        run(f"CREATE MATERIALIZED VIEW paired {paired} {quick} AS {PAIRED}")

    def drop_file(self, city: str) -> None:
        """Drop a file with rows that are nowhere yet."""
        made = rows(self.files * FILE_ROWS + 1, FILE_ROWS, city)
        self.external.run(
            *(
                f"insert into events values ({one['id']}, {'null' if one['city'] is None else repr(one['city'])},"
                f" {one['amount']})"
                for one in made.to_pylist()
            )
        )
        drop(self.folder / f"events/{self.files}.parquet", made)
        self.files += 1

    def change(self, random: Random) -> None:
        """Change the external table, in one transaction, and drop a file at times."""
        low = random.randrange(300)
        statements = (
            f"update items set price = price + 1 where id between {low} and {low + 40}",
            f"update items set id = -id where id between {low} and {low + 5}",
            f"delete from items where id between {low} and {low + 9}",
            f"insert into items select g, 1, 'new' from generate_series({low}, {low + 20}) g on conflict do nothing",
        )
        if random.random() < 0.03:
            self.external.run("truncate items")
        self.external.run(*random.sample(statements, 2))
        if random.random() < 0.3:
            self.drop_file(random.choice(CITIES))

    def compare(self) -> None:
        """Wait until both Delta tables are what the server says."""
        for name, query, columns in (("items", ITEMS, ("id", "price", "code")), ("paired", PAIRED, None)):
            wanted = sorted((tuple(map(shown, row)) for row in self.external.rows(query)), key=repr)
            until_has(self.service, name, partial(in_lake, self.folder / name, columns), wanted)

    def drop(self) -> None:
        """Drop all of it: nothing is left on the server."""
        self.service.run("DROP MATERIALIZED VIEW paired")
        self.service.run("DROP SOURCE pg CASCADE")
        self.service.run("DROP SOURCE drops CASCADE")
        until(lambda: not self.external.slots() and not self.external.published(), what="nothing is left there")
