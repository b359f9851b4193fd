"""Rows for Nexmark's three tables as INSERT .. SELECT, and random changes to them."""

from collections.abc import Iterator
from random import Random
from typing import Final

from tests.support.tpch import number, word

_STATES: Final = ("OR", "ID", "CA", "WA", "NY")
_CITIES: Final = ("Portland", "Boise", "Oakland", "Kent", "Buffalo")
_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple", "channel-7")
_ITEMS: Final = ("chair", "lamp", "book", "vase")
MINUTES: Final = 40
"""All that happens lies within so many minutes, so that windows hold several rows."""


def filled(bids: int) -> Iterator[str]:
    """Yield the statements that fill all tables: a tenth as many auctions as bids, and a twentieth as many persons."""
    persons, auctions = sizes(bids)
    yield f"insert into person {person(1)} from generate_series(1, {persons}) g"
    yield f"insert into auction {auction(bids, 2)} from generate_series(1, {auctions}) g"
    yield f"{_BID} {bid(bids, 3)} from generate_series(1, {bids}) g"


_BID: Final = "insert into bid (auction, bidder, price, channel, url, date_time, extra)"


def sizes(bids: int) -> tuple[int, int]:
    """Return the numbers of persons and auctions."""
    return max(bids // 20, 5), max(bids // 10, 10)


def moment(salt: int) -> str:
    """Return a time of the row `g`."""
    return f"(timestamp '2015-07-15 00:00:00' + {number('g', salt, MINUTES * 60)} * interval '1 second')"


def person(salt: int) -> str:
    """Return the SELECT list of persons."""
    return (
        f"select g, 'person ' || g, 'p' || g || '@example.com', '1234 5678', {word('g', salt, _CITIES)},"
        f" {word('g', salt + 1, _STATES)}, {moment(salt)}, ''"
    )


def auction(bids: int, salt: int) -> str:
    """Return the SELECT list of auctions."""
    persons, _ = sizes(bids)
    starts = moment(salt)
    return (
        f"select g, {word('g', salt, _ITEMS)}, 'as new', {number('g', salt, 100)}, {number('g', salt + 1, 1000)},"
        f" {starts}, {starts} + {number('g', salt + 2, 20)} * interval '1 minute', 1 + {number('g', salt + 3, persons)},"
        f" 10 + {number('g', salt + 4, 3)}, ''"
    )


def bid(bids: int, salt: int) -> str:
    """Return the SELECT list of bids. Many have an equal price."""
    persons, auctions = sizes(bids)
    return (
        f"select 1 + {number('g', salt, auctions)}, 1 + {number('g', salt + 1, persons)},"
        f" 1 + {number('g', salt + 2, 300)}, {word('g', salt + 3, _CHANNELS)},"
        f" 'https://www.example.com/' || g % 7 || '/x/item', {moment(salt + 4)}, 'c' || g % 5"
    )


def changed(random: Random, bids: int) -> str:
    """Return a statement that changes some rows of a random table."""
    persons, auctions = sizes(bids)
    salt = random.randrange(100, 1 << 30)
    one, of = random.randrange(1, auctions + 1), random.randrange(1, persons + 1)
    return random.choice(
        [
            f"{_BID} {bid(bids, salt)} from generate_series(1, {random.randint(1, 6)}) g",
            f"{_BID} {bid(bids, salt)} from generate_series(1, {random.randint(1, 6)}) g",
            f"insert into auction {auction(bids, salt)} from generate_series({one}, {one + 1}) g",
            f"insert into person {person(salt)} from generate_series({of}, {of + 1}) g",
            f"delete from bid where auction = {one} and bidder = {of}",
            f"delete from auction where id = {one}",
            f"delete from person where id = {of}",
            f"update bid set price = price + 1, bidder = {of} where auction = {one}",
            f"update auction set seller = {of}, category = 10 where id = {one}",
        ]
    )
