"""`spark.read.format("tidefill")`: read tables and views of a tidefill service as of one published epoch.

Spark finds the module by its name, so nothing has to be registered. It needs no other code of tidefill: it asks the
service over HTTP, and reads Postgres in Arrow with the caller's login for reading.

The service *lends* an epoch when a query is planned. All tasks read that epoch, and renew the loan meanwhile. With the
option `epoch` several frames have the same one.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

PARTITIONS: Final = 4
"""How many tasks read, unless the option `numPartitions` says it."""
RENEW_SECONDS: Final = 10.0
_OPTIONS: Final = frozenset({"url", "token", "relation", "columns", "epoch", "numpartitions", "pushfilters", "path"})
_AS_THEY_ARE: Final = frozenset(
    {"boolean", "smallint", "int", "bigint", "float", "double", "binary", "date", "timestamp", "timestamp_ntz"}
)
"""The Spark types whose values Arrow carries unchanged. Others are read as Postgres's texts."""
_COMPARED: Final[Mapping[type[datasource.Filter], str]] = {
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
}


class TidefillError(Exception):
    """The service refused what was asked, or could not be reached."""


class TidefillSource(datasource.DataSource):
    """The source. Options: `url`, `token`, `relation`, and if wanted `columns`, `epoch`, `numPartitions` and
    `pushFilters`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): text for name, text in options.items()}
        if unknown := given.keys() - _OPTIONS:
            raise TidefillError(f'unknown option "{min(unknown)}": known are {", ".join(sorted(_OPTIONS))}')
        if missing := {"url", "relation"} - {*given, *(["relation"] if "path" in given else [])}:
            raise TidefillError(f'option "{min(missing)}" is missing')
        self.asked = _Asked(
            Service(given["url"].rstrip("/"), given.get("token")),
            given.get("relation", given.get("path", "")),
            tuple(name.strip() for name in given["columns"].split(",")) if given.get("columns") else None,
            given.get("epoch"),
            int(given.get("numpartitions", PARTITIONS)),
        )
        self.filters = given.get("pushfilters", "false").lower() == "true"

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidefill"

    def schema(self) -> str:
        """Return the columns that users see, or those that were asked for, with their Spark types."""
        loan = self.asked.lend()
        self.asked.service.call("DELETE", f"/v1/loans/{loan['loan']}")
        columns = self.asked.chosen(loan)
        return ", ".join(f"`{one['name'].replace('`', '``')}` {one['spark']}" for one in columns)

    def reader(self, schema: StructType) -> "TidefillReader":
        """Return the reader of one query."""
        return (FilteringReader if self.filters else TidefillReader)(self.asked, schema)


DefaultSource = TidefillSource
"""The name by which Spark finds the source of a module."""


@dataclass(frozen=True)
class Service:
    """A service, and the token of the caller."""

    url: str
    token: str | None

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the service, and return its answer. Raises TidefillError in its words."""
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        content = None if body is None else json.dumps(body).encode()
        if not self.url.startswith(("http://", "https://")):
            raise TidefillError(f'url "{self.url}" does not begin with http:// or https://')
        request = urllib.request.Request(self.url + path, content, headers, method=method)  # noqa: S310 - checked above
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - checked above
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise TidefillError(_detail(error.read())) from None
        except OSError as error:
            raise TidefillError(f"{self.url} cannot be reached: {error}") from None
        return json.loads(text) if text else None


@dataclass(frozen=True)
class _Asked:
    """The options of a user."""

    service: Service
    relation: str
    columns: tuple[str, ...] | None
    epoch: str | None
    partitions: int

    def lend(self) -> dict[str, Any]:
        """Borrow the epoch."""
        return self.service.call("POST", "/v1/loans", {"relations": [self.relation], "epoch": self.epoch})

    def chosen(self, loan: Mapping[str, Any]) -> list[Mapping[str, str]]:
        """Return the columns to read. Raises TidefillError if one does not exist."""
        there = {one["name"]: one for one in loan["relations"][0]["columns"]}
        if missing := [name for name in self.columns or () if name not in there]:
            raise TidefillError(f'"{self.relation}" has no column "{missing[0]}"')
        return [there[name] for name in self.columns or there]


class Vnodes(datasource.InputPartition):
    """The rows of some vnodes, read by one task."""

    def __init__(self, service: Service, loan: str, query: str, columns: Sequence[Mapping[str, str]]) -> None:
        super().__init__(None)
        self.service, self.loan, self.query, self.columns = service, loan, query, columns


class TidefillReader(datasource.DataSourceReader):
    """Reads one relation in one query."""

    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self.asked, self.schema = asked, schema
        self.conditions: list[str] = []

    def partitions(self) -> Sequence[Vnodes]:
        """Borrow an epoch, and divide the vnodes evenly."""
        loan = self.asked.lend()
        (lent,) = loan["relations"]
        columns = self.asked.chosen(loan)
        shown = ", ".join(f"{_read(one)} as {_quoted(one['name'])}" for one in columns)
        epoch, count = int(lent["epoch"]), int(lent["vnode_count"])
        also = "".join(f" and ({one})" for one in self.conditions)
        number = max(1, min(self.asked.partitions, count))
        bounds = [count * at // number for at in range(number + 1)]
        return [
            Vnodes(
                self.asked.service,
                loan["loan"],
                f"select {shown} from {lent['table']} where _vnode >= {first} and _vnode < {end}"
                f" and _from <= {epoch} and _to > {epoch}{also}",
                columns,
            )
            for first, end in pairwise(bounds)
        ]

    def read(self, partition: datasource.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some vnodes, in Arrow."""
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - only tasks need it

        assert isinstance(partition, Vnodes)
        service = partition.service
        login = service.call("GET", "/v1/read-login?password=true")
        renew = f"/v1/loans/{partition.loan}"
        service.call("PUT", renew)
        renewed = time.monotonic()  # noqa: TID251 - it runs beside no epoch
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        with dbapi.connect(login["dsn"]) as connection, connection.cursor() as cursor:
            cursor.execute(partition.query)
            for batch in cursor.fetch_record_batch():
                yield _typed(batch, wanted)
                if time.monotonic() - renewed > RENEW_SECONDS:  # noqa: TID251 - as above
                    service.call("PUT", renew)
                    renewed = time.monotonic()  # noqa: TID251 - as above
        # The rows are of the epoch only if the loan lasted until now.
        service.call("PUT", renew)


class FilteringReader(TidefillReader):
    """A reader that lets Postgres filter rows. Spark refuses such a reader while
    `spark.sql.python.filterPushdown.enabled` is false.
    """

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:  # noqa: N802 - Spark's name
        """Take the filters that mean the same in Postgres."""
        loan = self.asked.lend()
        self.asked.service.call("DELETE", f"/v1/loans/{loan['loan']}")
        types = {one["name"]: one["type"] for one in self.asked.chosen(loan)}
        for one in filters:
            text = condition(one, types)
            if text is None:
                yield one
            else:
                self.conditions.append(text)


def condition(one: datasource.Filter, types: Mapping[str, str]) -> str | None:
    """Return a filter as SQL of Postgres, or None if it may mean something else there."""
    if isinstance(one, datasource.Not):
        inner = condition(one.child, types)
        return None if inner is None else f"not ({inner})"
    path = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in types:
        return None
    column, kind = _quoted(path[0]), types[path[0]]
    if isinstance(one, datasource.IsNull):
        return f"{column} is null"
    if isinstance(one, datasource.IsNotNull):
        return f"{column} is not null"
    if isinstance(one, datasource.In):
        found = [_literal(value, kind) for value in one.value]
        return f"{column} in ({', '.join(map(str, found))})" if found and None not in found else None
    value = _literal(getattr(one, "value", None), kind)
    if value is None:
        return None
    if isinstance(one, datasource.EqualTo):
        return f"{column} = {value}"
    sign = _COMPARED.get(type(one))
    return None if sign is None else f"{column} {sign} {value}"


def _literal(value: Any, kind: str) -> str | None:
    """Return a value as a literal of a column's type. None if the two engines may compare it differently."""
    numeric = kind in {"smallint", "integer", "bigint"} or kind.startswith("numeric(")
    match value:
        case bool():
            return f"{str(value).lower()}" if kind == "boolean" else None
        case int() | Decimal():
            return f"({value})" if numeric else None
        case datetime():
            # It is in the zone of this process. Spark compares it itself.
            return None
        case date():
            return f"date '{value.isoformat()}'" if kind == "date" else None
        case str():
            return _text(value) if kind == "text" and "\0" not in value else None
        case _:
            return None


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'" if "\\" not in value else "E'" + _escaped(value) + "'"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def _read(column: Mapping[str, str]) -> str:
    """Return the expression that reads a column, as text where Arrow would change its values."""
    name, spark = _quoted(column["name"]), column["spark"]
    if spark in _AS_THEY_ARE or column["type"] == "text":
        return name
    if spark.startswith("array<"):
        element = spark.removeprefix("array<").removesuffix(">")
        return name if element in _AS_THEY_ARE or column["type"] == "text[]" else f"{name}::text[]"
    return f"{name}::text"


def _typed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    columns = [batch.column(place).cast(field.type) for place, field in enumerate(wanted)]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _detail(answer: bytes) -> str:
    try:
        found = json.loads(answer)
    except ValueError:
        return answer.decode(errors="replace")[:300]
    return str(found.get("detail", found)) if isinstance(found, dict) else str(found)
