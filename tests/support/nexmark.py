"""Rows for Nexmark's tables as INSERT .. SELECT, in the shapes that its queries ask for, and random changes.

Every value is a function of its row's number and a salt, as in `tests.support.tpch`.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from tests.support.tpch import number, word

_START: Final = "timestamp '2024-01-01 05:00'"
_STATES: Final = ("or", "id", "ca", "ny")


def filled(bids: int) -> Iterator[str]:
    """Yield the statements that fill all tables: an auction for four bids, a person for five."""
    yield "insert into shift select n * 2 from generate_series(0, 4) n"
    yield "insert into side_input select n, 'v' || n from generate_series(0, 9) n"
    yield f"insert into person {person(1)} from generate_series(1, {bids // 5}) g"
    yield f"insert into auction {auction(bids, 2)} from generate_series(1, {bids // 4}) g"
    yield f"insert into bid {bid(bids, 3)} from generate_series(1, {bids}) g"


def person(salt: int) -> str:
    """Return the SELECT list of persons."""
    state, at = word("g", salt, _STATES), f"{_START} + {number('g', salt + 1, 600)} * interval '1 second'"
    return f"select g, 'n' || {number('g', salt, 7)}, 'e', 'c', 'city', {state}, {at}, null"


def auction(bids: int, salt: int) -> str:
    """Return the SELECT list of auctions. They last for a minute or two."""
    at = f"{_START} + {number('g', salt, 600)} * interval '1 second'"
    return (
        f"select g, 'item' || g, 'd', 5, 10, {at}, {at} + {number('g', salt + 1, 120)} * interval '1 second',"
        f" 1 + {number('g', salt + 2, bids // 5)}, 10 + {number('g', salt + 3, 3)}, 'x'"
    )


def bid(bids: int, salt: int) -> str:
    """Return the SELECT list of bids. Some are for no auction."""
    return (
        f"select g, 1 + {number('g', salt, bids // 4 + 5)}, 1 + {number('g', salt + 1, bids // 5)},"
        f" 10 + {number('g', salt + 2, 60)} * 40 * {number('g', salt + 3, 900)}, 'ch',"
        f" 'https://a/b/c' || {number('g', salt + 4, 3)} || '/d' || g,"
        f" {_START} + {number('g', salt + 5, 700_000)} * interval '1 millisecond', 'accbc'"
    )


def changed(random: Random, bids: int) -> str:
    """Return a statement that changes some rows of a random table: new ones, moved references, new values, or none."""
    salt, auctions, persons = random.randrange(100, 1 << 30), bids // 4, bids // 5

    def some(most: int) -> str:
        first = random.randrange(1, most + 20)
        return f"generate_series({first}, {first + random.randrange(6)}) g"

    first = random.randrange(1, bids)
    few = f"id between {first} and {first + random.randrange(8)}"
    statements = [
        f"insert into bid {bid(bids, salt)} from {some(bids)}",
        f"insert into auction {auction(bids, salt)} from {some(auctions)}",
        f"insert into person {person(salt)} from {some(persons)}",
        f"insert into side_input select {random.randrange(10)}, 'w{salt}'",
        f"delete from bid where {few}",
        f"delete from auction where id = {random.randrange(1, auctions)}",
        f"delete from person where id = {random.randrange(1, persons)}",
        f"delete from side_input where key = {random.randrange(10)}",
        f"update bid set auction = {random.randrange(1, auctions)}, price = price + {salt % 500} where {few}",
        f"update bid set date_time = date_time + {random.randint(-20, 20)} * interval '1 second' where {few}",
        f"update bid set id = id + {10 * bids} where {few}",
        f"update auction set category = 10 + {salt % 3}, seller = {salt % persons} where id = {salt % auctions}",
        f"update person set state = '{random.choice(_STATES)}' where id = {random.randrange(1, persons)}",
    ]
    return random.choice(statements)
