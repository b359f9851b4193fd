"""`/v1/loans`: an epoch of some relations, kept readable for the caller's own Postgres login while Spark reads it."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from service.api.access import AskedBy, needs
from service.api.calling import Here
from service.domain.lending import LOAN_SECONDS
from service.domain.roles import Role
from service.operations.rows import lending
from service.protocol.ids import EpochField
from service.protocol.relation import state_table

router = APIRouter(prefix="/v1", tags=["relations"])

LoanPath = Annotated[str, Path(min_length=1, max_length=200)]


class AskedLoan(BaseModel):
    """The relations to read. Without `epoch`, as of the newest published one."""

    model_config = ConfigDict(extra="forbid")

    relations: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=lending.RELATIONS_MAX
    )
    epoch: EpochField | None = None


class LentColumn(BaseModel):
    """A column that users see: its type in Postgres and in Spark."""

    name: str
    type: str
    spark: str


class LentRelation(BaseModel):
    """A relation. Its rows at `epoch` are those of `table` with `_from <= epoch < _to`; `_vnode` is below
    `vnode_count`.
    """

    name: str
    table: str
    epoch: EpochField
    vnode_count: int
    rows: int = Field(description="At about that epoch")
    columns: list[LentColumn]


class LoanView(BaseModel):
    """A loan lasts for so many seconds, unless it is renewed."""

    loan: str
    seconds: int
    relations: list[LentRelation]


@router.post("/loans", status_code=201, dependencies=needs(Role.VIEWER))
async def lend_epoch(world: Here, asked: AskedLoan, asked_by: AskedBy) -> LoanView:
    """Keep an epoch of some relations readable for the caller's login (`/v1/read-login`), and say how to read it.

    All relations that the database graph maintains are lent as of one epoch.
    """
    loan, lent = await lending.lend(world, asked.relations, asked.epoch, asked_by=asked_by)
    return LoanView(
        loan=loan,
        seconds=LOAN_SECONDS,
        relations=[
            LentRelation(
                name=one.relation.name,
                table=state_table(one.relation.id),
                epoch=one.epoch,
                vnode_count=one.relation.vnode_count,
                rows=one.rows,
                columns=[
                    LentColumn(name=column.name, type=str(column.type), spark=column.type.spark)
                    for column in one.relation.visible
                ],
            )
            for one in lent
        ],
    )


@router.put("/loans/{loan}", status_code=204, dependencies=needs(Role.VIEWER))
async def renew_loan(world: Here, loan: LoanPath, asked_by: AskedBy) -> None:
    """Let a loan last from now on. An epoch is lent for half an hour at most."""
    await lending.renew(world, loan, asked_by=asked_by)


@router.delete("/loans/{loan}", status_code=204, dependencies=needs(Role.VIEWER))
async def end_loan(world: Here, loan: LoanPath, asked_by: AskedBy) -> None:
    """End a loan."""
    await lending.end(world, loan, asked_by=asked_by)
