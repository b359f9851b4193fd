"""`tidefill load` and `reload`: send files of rows to tables with a progress bar, or read a followed table again."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, Final, Literal
from urllib.parse import quote

import typer

from service.cli import output, watching
from service.cli.client import DEFAULT_URL, Json, Service, Token, Url, connected
from service.cli.live import Live
from service.protocol.quoting import quoted

commands = typer.Typer()
Format = Literal["csv", "ndjson", "arrow", "parquet"]
_MEDIA: Final[Mapping[Format, str]] = MappingProxyType(
    {
        "csv": "text/csv",
        "ndjson": "application/x-ndjson",
        "arrow": "application/vnd.apache.arrow.stream",
        "parquet": "application/vnd.apache.parquet",
    }
)
_SUFFIXES: Final[Mapping[str, Format]] = MappingProxyType(
    {
        ".csv": "csv",
        ".ndjson": "ndjson",
        ".jsonl": "ndjson",
        ".arrow": "arrow",
        ".arrows": "arrow",
        ".parquet": "parquet",
    }
)
_READ_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Given:
    """A file to load. `size` is None where it cannot be known, as of a pipe."""

    path: Path | None
    table: str
    form: Format
    packed: bool
    size: int | None

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the call. A size lets the service refuse a body that is too large at once."""
        sized = {} if self.size is None else {"Content-Length": str(self.size)}
        return {"Content-Type": _MEDIA[self.form], **sized, **({"Content-Encoding": "gzip"} if self.packed else {})}


@commands.command()
def load(
    *,
    files: Annotated[
        list[str], typer.Argument(help="Files of rows: .csv, .ndjson, .arrow or .parquet, also .gz; - is the input")
    ],
    table: Annotated[str | None, typer.Option(help="The table; without it, the name of each file")] = None,
    columns: Annotated[str | None, typer.Option(help="The columns that the rows give: a,b; others become NULL")] = None,
    rows_format: Annotated[Format | None, typer.Option("--format", help="Instead of the file's suffix")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Load rows from files. A row replaces the row with the same key. A file with a bad row changes nothing."""
    given = [_given(name, table, rows_format) for name in files]
    with connected(url, token, as_json=as_json) as service:
        for one in given:
            rows = _loaded(service, one, columns=columns, quiet=as_json)
            if as_json:
                output.say_json({"table": one.table, "rows": rows})
            else:
                output.say(f"{one.table}: {rows:,} rows loaded")


@commands.command()
def reload(
    *,
    table: Annotated[str, typer.Argument(help="A table that follows an external one")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Read a followed table again in place, also a broken one. Its views and indexes stay."""
    with connected(url, token, as_json=as_json) as service:
        answer = service.post("/v1/sql", {"sql": f"ALTER TABLE {quoted(table)} RELOAD"})
    if as_json:
        output.say_json(answer)
    else:
        output.say(f"{table} follows again, and its history is read: tidefill watch {table}")


def _given(name: str, table: str | None, form: Format | None) -> Given:
    """Return what is loaded from where. Raises BadParameter."""
    path = None if name == "-" else Path(name)
    packed = name.lower().endswith(".gz")
    found = form or _SUFFIXES.get(Path(name.lower().removesuffix(".gz")).suffix)
    if found is None:
        known = ", ".join(_SUFFIXES)
        raise typer.BadParameter(f"{name}: its suffix is none of {known}; --format says what it is", param_hint="FILE")
    if path is None and table is None:
        raise typer.BadParameter("the input has no name: --table names the table", param_hint="FILE")
    if path is not None and not path.is_file():
        raise typer.BadParameter(f"{name} is no file", param_hint="FILE")
    called = table or ("" if path is None else path.name.partition(".")[0])
    return Given(path, called, found, packed, None if path is None else path.stat().st_size)


def _loaded(service: Service, given: Given, *, columns: str | None, quiet: bool) -> int:
    """Send one file and return the number of its rows."""
    sending = _Sending(given)
    live = Live(service, quiet=quiet)

    def send() -> Any:
        path = f"/v1/relations/{quote(given.table, safe='')}/rows"
        with sys.stdin.buffer if given.path is None else given.path.open("rb") as file:
            return service.upload(path, sending.pieces(file), given.headers, columns=columns)

    look = partial(sending.look, live)
    return int(live.run(send, title=f"load {given.table}", look=look)["rows"])


class _Sending:
    """Counts the bytes of a file that were sent."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._sent = 0
        self._complete = False

    def pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the file."""
        while piece := file.read(_READ_BYTES):
            yield piece
            self._sent += len(piece)
        self._complete = True

    def look(self, live: Live) -> watching.Progress | None:
        """Return how much was sent, then how much is published, and None while the service checks the rows."""
        if self._complete:
            return live.rows_of(self._given.table)
        size = self._given.size
        percent = self._sent / size * 100 if size else None
        shown = f"{self._sent:,} bytes" if percent is None else f"{percent:.2f}%"
        row = {"ddl_id": 0, "name": f"load {self._given.table}", "progress": shown, "rows": None, "total": None}
        return {**row, "percent": percent, "phase": "sending", "waiting": None, "waiting_for": None}
