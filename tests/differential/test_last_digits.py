"""Functions whose last digit differs between C's and Java's libraries: a view holds what Postgres answers (I12)."""

import asyncio
import logging
import math
import struct
from random import Random
from typing import Final

import pytest
from pyspark.sql import SparkSession

from service.sql.expressions import functions
from service.sql.expressions.functions import FUNCTIONS, Overload
from service.sql.expressions.typed import DOUBLE
from service.sql.views import audit
from tests.differential.run import Difference, Run
from tests.differential.worlds import Change, Column, Strategy, View, World
from tests.support.postgres import fresh_database
from tests.support.state_store import prepared_store

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(300)]

EXTREME: Final = (
    *("NaN", "Infinity", "-Infinity", "0", "-0", "1", "-1", "5e-324", "-5e-324", "2.2250738585072014e-308"),
    *("1.7976931348623157e308", "-1.7976931348623157e308", "1e-310", "709.7", "-745.1", "-708.5", "0.5", "3", "-2"),
)
OUTPUTS: Final = (
    *("cbrt(d)", "exp(d)", "power(d, e)", "d ^ e", "ln(d)", "log(d)", "log10(d)", "sqrt(d)", "exp(r)", "ln(i)"),
    *("power(i, 3)", "pow(d, 0.5)", "ln(d + e)", "ln(d * e)", "exp(d / e)", "exp(-d * d)", "cbrt(d - e)", "exp(i - 7)"),
    *(
        "exp(ln(abs(d)) * 0.5)",
        "ln(coalesce(d, 1) + 1)",
        "power(1.05::real, i)",
        "1 + exp(d) * 2",
        "cbrt(greatest(d, e))",
    ),
    *("exp(1::double precision)", "ln('2.5'::double precision)", "case when d > 0 then ln(d) else exp(-1.0 * r) end"),
)
COLUMNS: Final = (
    *(Column("id", "b", "bigint"), Column("d", "d", "double precision"), Column("e", "d", "double precision")),
    *(Column("r", "r", "real"), Column("i", "i", "integer")),
)


def doubles(random: Random) -> list[str]:
    """Return numbers of every size, half of them of a size that people have."""
    drawn = [struct.unpack("<d", random.randbytes(8))[0] for _ in range(100)]
    drawn += [random.uniform(-1, 1) * 10 ** random.randrange(-3, 3) for _ in range(140)]
    return [*EXTREME, *(repr(value) for value in drawn if math.isfinite(value))]


def world() -> World:
    """Return a table of such numbers."""
    random = Random(7)
    first, second = doubles(random), doubles(random)
    random.shuffle(second)
    history = [
        Change(
            None,
            {"id": str(number), "d": d, "e": e, "r": f"{random.uniform(-80, 80):.6g}", "i": str(random.randrange(60))},
        )
        for number, (d, e) in enumerate(zip(first, second, strict=False), 1)
    ]
    return World(COLUMNS, (("id", False),), tuple(history))


async def found(url: str, spark: SparkSession, outputs: tuple[str, ...]) -> list[Difference]:
    """Compare each output over all rows on which Postgres does not fail."""
    differences: list[Difference] = []
    with fresh_database(url) as database:
        async with prepared_store(database) as store:
            run = Run(store, spark, world())
            await run.prepare()
            try:
                for output in outputs:
                    bad = [0, *run.oracle.ask(output).errors]
                    kept = f"id not in ({', '.join(map(str, bad))})"
                    assert run.oracle.survivors(kept) > 30, output
                    differences += await run.alone(View((output,), kept, Strategy.ARRANGEMENT))
            finally:
                run.close()
    return differences


BY_SPARK: Final = {
    **{name: Overload((DOUBLE,), DOUBLE, f"{name}({{0}})") for name in ("cbrt", "exp", "ln", "log10")},
    "log": Overload((DOUBLE,), DOUBLE, "log10({0})"),
    **{name: Overload((DOUBLE, DOUBLE), DOUBLE, "power({0}, {1})") for name in ("pow", "power")},
}
"""The functions as Java computes them."""


def test_the_rows_tell_who_computed_them(
    postgres_url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger("SQLQueryContextLogger").disabled = True
    calls = {name: (one,) for name, one in BY_SPARK.items()}
    monkeypatch.setattr(functions, "FUNCTIONS", {**FUNCTIONS, **calls})
    monkeypatch.setattr(audit, "WORDS", audit.WORDS | set(BY_SPARK))
    computed = [one for one, *_ in FUNCTIONS.values() if one.store]
    assert len(computed) == len(BY_SPARK), "a function that the store computes is not compared"
    told = asyncio.run(found(postgres_url, spark, OUTPUTS[:4]))
    assert {one.view.outputs[0] for one in told} == set(OUTPUTS[:4])


def test_the_last_digit_is_that_of_postgres(postgres_url: str, spark: SparkSession) -> None:
    logging.getLogger("SQLQueryContextLogger").disabled = True
    assert len(world().history) >= 200
    differences = asyncio.run(found(postgres_url, spark, OUTPUTS))
    assert not differences, "\n".join(f"{one.view.text[:80]}: {one.postgres} {one.ours}" for one in differences)
