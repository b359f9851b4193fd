"""What the audit trail keeps of a statement. Nothing of it may be a secret.

DML is kept by its kind and table: its values are data of users, and data may be deleted while the trail is kept. So is
what names a connector: a caller may give a password among its options.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from service.sql.statements.dml import Delete, Insert, Update
from service.sql.statements.follow import CreateTableFrom
from service.sql.statements.indexes import CreateIndex, DropIndex
from service.sql.statements.jobs import (
    AlterFragmentRateLimit,
    AlterParallelism,
    AlterRateLimit,
    CancelJobs,
    Flush,
    Recover,
    ReloadTable,
)
from service.sql.statements.lake import CreateLakeSource, CreateLakeTable
from service.sql.statements.logical_views import CreateView
from service.sql.statements.relations import Drop
from service.sql.statements.settings import AlterSystem
from service.sql.statements.sinks import CreateSink
from service.sql.statements.sources import AlterSecret, CreateSecret, CreateSource, DropSecret
from service.sql.statements.statement import Statement
from service.sql.statements.tables import AddColumn, CreateTable
from service.sql.statements.views import CreateMaterializedView


@dataclass(frozen=True, slots=True)
class Told:
    """The text of a statement, the name or id of what it is about, and whether only admins may see it."""

    text: str
    target: str | None = None
    discreet: bool = False


_BY_NAME: Final[Mapping[type[Statement], str]] = MappingProxyType(
    {
        AlterSecret: "ALTER SECRET",
        AlterSystem: "ALTER SYSTEM SET",
        CreateSecret: "CREATE SECRET",
        CreateLakeSource: "CREATE SOURCE",
        CreateLakeTable: "CREATE TABLE",
        CreateSink: "CREATE SINK",
        CreateTable: "CREATE TABLE",
        Delete: "DELETE FROM",
        DropSecret: "DROP SECRET",
        Insert: "INSERT INTO",
        Update: "UPDATE",
    }
)
"""The words before the name, of statements that are kept by these and their name alone."""


def told(statement: Statement, text: str) -> Told:  # noqa: C901, PLR0911 - one case for each way
    """Return what is kept. Of a statement that is not listed here only the kind is."""
    match statement:
        case CreateSecret(name=name) | AlterSecret(name=name) | DropSecret(name=name):
            return Told(f"{_BY_NAME[type(statement)]} {name}", name, discreet=True)
        case (
            AlterSystem(name=name)
            | CreateLakeSource(name=name)
            | CreateLakeTable(name=name)
            | CreateSink(query=CreateMaterializedView(name=name))
            | Delete(target=name)
            | Insert(target=name)
            | Update(target=name)
        ):
            return Told(f"{_BY_NAME[type(statement)]} {name}", name)
        case CreateTable(name=name, options=options):
            return Told(text if options is None else f"{_BY_NAME[CreateTable]} {name}", name)
        case CreateSource(name=name, text=shown):
            return Told(shown, name)
        case (
            AddColumn(name=name)
            | AlterRateLimit(name=name)
            | AlterParallelism(name=name)
            | ReloadTable(name=name)
            | CreateIndex(name=name)
            | CreateMaterializedView(name=name)
            | CreateTableFrom(name=name)
            | CreateView(name=name)
            | Drop(name=name)
            | DropIndex(name=name)
        ):
            return Told(text, name)
        case AlterFragmentRateLimit(fragment=fragment):
            return Told(text, str(fragment))
        case CancelJobs(ids=ids):
            return Told(text, ", ".join(map(str, ids)))
        case Flush() | Recover():
            return Told(type(statement).__name__.upper())
        case _:
            return Told(type(statement).__name__)
