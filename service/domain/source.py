"""Parse the options of a source: how to reach an external Postgres, and what to create there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from service.domain.errors import Invalid
from service.domain.parameters import parse_bool

CONNECTOR: Final = "postgres-cdc"
PASSWORD: Final = "password"  # noqa: S105 - an option's name
"""The one option that is stored apart from the others and never shown."""
CONNECT_SECONDS: Final = 5
NAME_BYTES_MAX: Final = 63
VERSION_MIN: Final = 140000
"""From this version on the server reports what decoding costs it, and snapshots have 64-bit transaction ids."""

_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")
_SSL_MODES: Final = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify-ca": "verify-ca",
    "verify-full": "verify-full",
}
"""RisingWave's words, each with libpq's."""


class RetentionAction(StrEnum):
    """What happens when the slot makes the external database keep more log than allowed."""

    PAUSE = "pause"
    """Raise an alarm only. The log is kept, and an operator decides."""
    DROP_SLOT = "drop_slot"
    """Drop the slot. The tables have to be created again."""


class Retention(StrEnum):
    """How the log that a slot retains compares with the source's limits."""

    WARNING = "warning"
    EXCEEDED = "exceeded"
    SLOT_DROPPED = "slot_dropped"
    """Permanent: the followed tables have to be created again."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source. `publication` and `slot` are None if tidefill chooses their names."""

    hostname: str
    port: int
    username: str
    database: str
    schema: str = "public"
    publication: str | None = None
    create_publication: bool = True
    slot: str | None = None
    ssl_mode: str = "prefer"
    ssl_root_cert: str | None = None
    retained_warning_bytes: int | None = None
    retained_max_bytes: int | None = None
    retention_action: RetentionAction = RetentionAction.PAUSE

    @property
    def place(self) -> str:
        """The address of the database, for users."""
        return f"{self.hostname}:{self.port}/{self.database}"


OPTIONS: Final = frozenset(
    {
        "connector",
        "hostname",
        "port",
        "username",
        PASSWORD,
        "database.name",
        "schema.name",
        "publication.name",
        "publication.create.enable",
        "slot.name",
        "ssl.mode",
        "ssl.root.cert",
        "wal.retained.warning.bytes",
        "wal.retained.max.bytes",
        "wal.retained.action",
    }
)
_NEEDED: Final = ("connector", "hostname", "username", "database.name")


def unsupported(connector: str) -> str:
    """Return the refusal of a source with another connector."""
    there = f'connector "{connector}" is not supported: there is {CONNECTOR}'
    lake = "there are places of many tables, deltalake and file (docs/lake.md)"
    fills = "datagen, which fills a table: CREATE TABLE .. WITH (connector = 'datagen')"
    return f"{there}, {lake}, and {fills}"


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options without the password. Raises Invalid, whose pointer is the wrong option."""
    if given.get("connector", CONNECTOR) not in {CONNECTOR, ""}:
        raise Invalid(unsupported(given["connector"]), pointer="connector")
    unknown = sorted(given.keys() - OPTIONS)
    if unknown:
        names = ", ".join(f'"{name}"' for name in unknown)
        raise Invalid(f"unexpected options in WITH clause: [{names}]", pointer=unknown[0])
    for name in _NEEDED:
        if not given.get(name):
            raise Invalid(f'option "{name}" is missing', pointer=name)
    return SourceOptions(
        hostname=_hostname(given["hostname"]),
        port=_number(given, "port", 5432, maximum=65535),
        username=given["username"],
        database=given["database.name"],
        schema=given.get("schema.name") or "public",
        publication=_name(given, "publication.name"),
        create_publication=_boolean(given, "publication.create.enable", default=True),
        slot=_slot(given.get("slot.name")),
        ssl_mode=_ssl_mode(given.get("ssl.mode", "preferred")),
        ssl_root_cert=_root_cert(given.get("ssl.root.cert")),
        retained_warning_bytes=_bytes(given, "wal.retained.warning.bytes"),
        retained_max_bytes=_bytes(given, "wal.retained.max.bytes"),
        retention_action=_action(given.get("wal.retained.action", RetentionAction.PAUSE)),
    )


def retention(options: SourceOptions, retained_bytes: int | None, *, before: Retention | None) -> Retention | None:
    """Return the state of the retained log, or None if it is within bounds."""
    if before is Retention.SLOT_DROPPED:
        return before
    if retained_bytes is None:
        return before  # Nothing new is known.
    if options.retained_max_bytes is not None and retained_bytes > options.retained_max_bytes:
        drops = options.retention_action is RetentionAction.DROP_SLOT
        return Retention.SLOT_DROPPED if drops else Retention.EXCEEDED
    if options.retained_warning_bytes is not None and retained_bytes > options.retained_warning_bytes:
        return Retention.WARNING
    return None


def conninfo(options: SourceOptions, password: str) -> str:
    """Return libpq's connection string. It sets every option that libpq would otherwise take from the environment."""
    parts = {
        "host": options.hostname,
        "port": str(options.port),
        "user": options.username,
        PASSWORD: password,
        "dbname": options.database,
        "sslmode": options.ssl_mode,
        "gssencmode": "disable",
        "connect_timeout": str(CONNECT_SECONDS),
        "keepalives_idle": "30",
        "tcp_user_timeout": "30000",
        "application_name": "tidefill-source",
    }
    if options.ssl_root_cert is not None:
        parts["sslrootcert"] = options.ssl_root_cert
    if "," in options.hostname:
        # Of several servers, connect to the one that accepts writes at that moment.
        parts["target_session_attrs"] = "read-write"
    return " ".join(f"{name}={_quoted(value)}" for name, value in parts.items())


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _hostname(text: str) -> str:
    # The directory of a socket would be on this machine, where the server may trust every local user.
    if any(not host.strip() or host.strip()[0] in "/@" for host in text.split(",")):
        raise Invalid('option "hostname" takes names or addresses, with commas in between', pointer="hostname")
    return ",".join(host.strip() for host in text.split(","))


def _number(given: Mapping[str, str], name: str, default: int, *, maximum: int) -> int:
    text = given.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(maximum)) and 1 <= int(text) <= maximum):
        raise Invalid(f'option "{name}" takes a number from 1 to {maximum}', pointer=name)
    return int(text)


def _bytes(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 1, maximum=(1 << 63) - 1) if name in given else None


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    return parse_bool(name, given[name]) if name in given else default


def _name(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name)
    if text is not None and not 1 <= len(text.encode()) <= NAME_BYTES_MAX:
        raise Invalid(f'option "{name}" takes a name of at most {NAME_BYTES_MAX} bytes', pointer=name)
    return text


def _slot(text: str | None) -> str | None:
    if text is not None and not _SLOT.fullmatch(text):
        message = 'option "slot.name" takes lower-case letters, digits and underscores, at most 63'
        raise Invalid(message, pointer="slot.name")
    return text


def _ssl_mode(text: str) -> str:
    if text not in _SSL_MODES:
        raise Invalid(f'option "ssl.mode" takes one of {", ".join(_SSL_MODES)}', pointer="ssl.mode")
    return _SSL_MODES[text]


def _root_cert(text: str | None) -> str | None:
    if text is not None and text != "system" and not text.startswith("/"):
        raise Invalid('option "ssl.root.cert" takes "system" or the whole path of a file', pointer="ssl.root.cert")
    return text


def _action(text: str) -> RetentionAction:
    try:
        return RetentionAction(text)
    except ValueError:
        known = ", ".join(RetentionAction)
        message = f'option "wal.retained.action" takes one of {known}'
        raise Invalid(message, pointer="wal.retained.action") from None
