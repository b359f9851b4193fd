"""The tables that are measured: five columns, loaded through the product, each once per run."""

from dataclasses import dataclass, field
from typing import Final

from tests.bench.clock import monotonic
from tests.support.service import Service

COLUMNS: Final = "id, customer, status, amount, created"
CUSTOMERS: Final = 100_000
"""Different values of the column `customer`."""
AMOUNTS: Final = {"numeric(12,2)": "(g % 100000) / 100.0", "bigint": "g % 100000"}
"""Types of the column `amount`, and what is loaded into it. Numeric is what money has; bigint costs less."""


@dataclass(frozen=True, slots=True)
class Table:
    """A loaded table; `stored` is where the state store keeps it."""

    name: str
    rows: int
    stored: str
    columns: str
    """As CREATE TABLE spells them, with `id` as the primary key."""
    load_seconds: float


@dataclass
class Tables:
    """Loads a table when it is first asked for."""

    service: Service
    amount: str
    loaded: dict[int, Table] = field(default_factory=dict[int, Table])

    def of(self, rows: int) -> Table:
        """Return the table of so many rows."""
        if rows not in self.loaded:
            self.loaded[rows] = self._load(rows)
        return self.loaded[rows]

    def _load(self, rows: int) -> Table:
        name = f"orders_{rows}"
        columns = f"id bigint primary key, customer bigint, status text, amount {self.amount}, created timestamptz"
        self.service.sql(f"CREATE TABLE {name} ({columns})")
        began = monotonic()
        self.service.sql(
            f"INSERT INTO {name} SELECT g, g % {CUSTOMERS}, 'open', {AMOUNTS[self.amount]},"
            f" timestamptz '2026-01-01' + g * interval '1 s' FROM generate_series(1, {rows}) g"
        )
        seconds = monotonic() - began
        relation = self.service.get(f"/v1/relations/{name}")["id"]
        return Table(name, rows, f"state.t_{relation}", columns, seconds)
