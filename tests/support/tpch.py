"""Rows for TPC-H's eight tables as INSERT .. SELECT, in the shapes that its 22 queries ask for, and random changes.

Every value is a function of its row's number and a salt, so a larger salt gives other values at the same key.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

_REGIONS: Final = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
_NATIONS: Final = (
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0),
    ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2),
    ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
)  # fmt: skip
_COLOURS: Final = ("almond", "azure", "blue", "coral", "forest", "green", "ivory", "lemon", "navy", "olive")
_TYPES: Final = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
    ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"),
)
_CONTAINERS: Final = (("SM", "LG", "MED", "JUMBO", "WRAP"), ("CASE", "BOX", "BAG", "PKG", "PACK"))
_SEGMENTS: Final = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
_PRIORITIES: Final = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_MODES: Final = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
_INSTRUCTIONS: Final = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
_REMARKS: Final = ("", "quick packages", "special deposits requests", "Customer slow Complaints")
LINES: Final = 4
"""Line items of an order."""


def number(row: str, salt: int, below: int) -> str:
    """Return a whole number from 0 up to a bound, a function of the row's number and the salt."""
    return f"(abs(hashtextextended(({row})::text, {salt}) % {below}))::integer"


def word(row: str, salt: int, words: tuple[str, ...]) -> str:
    """Return one of some words."""
    listed = ", ".join(f"'{one}'" for one in words)
    return f"(array[{listed}])[1 + {number(row, salt, len(words))}]"


def money(row: str, salt: int, low: int, high: int) -> str:
    """Return an amount between two whole numbers."""
    return f"({low} + {number(row, salt, (high - low) * 100)} / 100.0)::numeric(15,2)"


def day(row: str, salt: int) -> str:
    """Return an order's date."""
    return f"(date '1992-01-01' + {number(row, salt, 2405)})"


def filled(scale: float) -> Iterator[str]:
    """Yield the statements that fill all tables; a scale of 0.01 has 60,000 line items."""
    suppliers, parts, customers, orders = sizes(scale)
    region = ", ".join(f"({key}, '{name}', '')" for key, name in enumerate(_REGIONS))
    nation = ", ".join(f"({key}, '{name}', {of}, '')" for key, (name, of) in enumerate(_NATIONS))
    yield f"insert into region values {region}"
    yield f"insert into nation values {nation}"
    yield f"insert into supplier {supplier('g', 1)} from generate_series(1, {suppliers}) g"
    yield f"insert into part {part('g', 2)} from generate_series(1, {parts}) g"
    places = f"generate_series(1, {parts}) g cross join generate_series(0, 3) p"
    yield f"insert into partsupp {partsupp(scale, 3)} from {places}"
    yield f"insert into customer {customer('g', 4)} from generate_series(1, {customers}) g"
    yield f"insert into orders {order('g', scale, 5)} from generate_series(1, {orders}) g"
    lines = (
        f"generate_series(1, {orders}) g cross join generate_series(1, {LINES}) n where n <= 1 + {number('g', 9, 4)}"
    )
    yield f"insert into lineitem {lineitem('g', 'n', scale, 6, 5)} from {lines}"


def sizes(scale: float) -> tuple[int, int, int, int]:
    """Return the numbers of suppliers, parts, customers and orders."""
    return (
        max(int(10_000 * scale), 10),
        max(int(200_000 * scale), 40),
        max(int(150_000 * scale), 30),
        max(int(1_500_000 * scale), 100),
    )


def supplier(row: str, salt: int) -> str:
    """Return the SELECT list of suppliers."""
    nation = number(row, salt, 25)
    return (
        f"select {row}, 'Supplier#' || {row}, 'street ' || {row}, {nation}, (10 + {nation}) || '-555-' || {row},"
        f" {money(row, salt, -999, 9999)}, {word(row, salt + 50, _REMARKS)}"
    )


def part(row: str, salt: int) -> str:
    """Return the SELECT list of parts."""
    words = " || ' ' || ".join(word(row, salt + place, _COLOURS) for place in range(3))
    kinds = " || ' ' || ".join(word(row, salt + 10 + place, kind) for place, kind in enumerate(_TYPES))
    held = " || ' ' || ".join(word(row, salt + 20 + place, kind) for place, kind in enumerate(_CONTAINERS))
    brand = f"'Brand#' || (1 + {number(row, salt + 30, 3)}) || (1 + {number(row, salt + 31, 3)})"
    return (
        f"select {row}, {words}, 'Manufacturer#' || (1 + {number(row, salt, 5)}), {brand}, {kinds},"
        f" 1 + {number(row, salt + 32, 50)}, {held}, {money(row, salt, 900, 1900)}, ''"
    )


def supplier_of(of: str, place: str, scale: float) -> str:
    """Return the key of one of a part's four suppliers."""
    suppliers = sizes(scale)[0]
    return f"(1 + ({of} + {place} * {suppliers // 4 + 1}) % {suppliers})::integer"


def partsupp(scale: float, salt: int) -> str:
    """Return the SELECT list of a part `g`'s supplier `p`."""
    row = "g * 10 + p"
    return f"select g, {supplier_of('g', 'p', scale)}, 1 + {number(row, salt, 9999)}, {money(row, salt, 1, 1000)}, ''"


def customer(row: str, salt: int) -> str:
    """Return the SELECT list of customers."""
    nation = number(row, salt, 25)
    return (
        f"select {row}, 'Customer#' || {row}, 'road ' || {row}, {nation}, (10 + {nation}) || '-777-' || {row},"
        f" {money(row, salt, -999, 9999)}, {word(row, salt, _SEGMENTS)}, ''"
    )


def order(row: str, scale: float, salt: int) -> str:
    """Return the SELECT list of orders. A third of all customers has none."""
    customers = sizes(scale)[2]
    status, date = word(row, salt + 1, ("O", "F", "P")), day(row, salt)
    return (
        f"select {row}, 1 + 3 * {number(row, salt, customers // 3)} + {number(row, salt + 2, 2)}, {status},"
        f" {money(row, salt, 1000, 300_000)}, {date}, {word(row, salt, _PRIORITIES)}, 'Clerk#' || {row} % 10, 0,"
        f" {word(row, salt + 3, _REMARKS)}"
    )


def lineitem(of: str, place: str, scale: float, salt: int, order_salt: int) -> str:
    """Return the SELECT list of line items. The dates follow that of the order."""
    row, parts = f"{of} * 10 + {place}", sizes(scale)[1]
    key = f"(1 + {number(row, salt, parts)})"
    quantity, ordered = f"(1 + {number(row, salt + 1, 100)})", day(of, order_salt)
    shipped = f"({ordered} + 1 + {number(row, salt + 2, 121)})"
    committed = f"({ordered} + 30 + {number(row, salt + 3, 61)})"
    received = f"({shipped} + 1 + {number(row, salt + 4, 30)})"
    return (
        f"select {of}, {key}, {supplier_of(key, number(row, salt + 5, 4), scale)}, {place}, {quantity},"
        f" ({quantity} * (900 + {key} % 1000))::numeric(15,2), {number(row, salt + 6, 11)} / 100.0,"
        f" {number(row, salt + 7, 9)} / 100.0,"
        f" case when {received} > date '1995-06-17' then 'N' else {word(row, salt + 8, ('R', 'A'))} end,"
        f" case when {shipped} > date '1995-06-17' then 'O' else 'F' end, {shipped}, {committed}, {received},"
        f" {word(row, salt + 9, _INSTRUCTIONS)}, {word(row, salt + 10, _MODES)}, ''"
    )


def changed(random: Random, scale: float) -> str:
    """Return a statement that changes some rows of a random table: new ones, moved references, new values, or none."""
    suppliers, parts, customers, orders = sizes(scale)
    salt = random.randrange(100, 1 << 30)

    def some(count: int, most: int) -> str:
        first = random.randrange(1, most + 1)
        return f"generate_series({first}, {min(first + random.randrange(count), most)}) g"

    of = some(5, orders + 20)
    lines = f"{some(5, orders + 20)} cross join generate_series(1, {random.randint(1, LINES)}) n"
    first = random.randrange(1, orders)
    few, those = f"l_orderkey between {first} and {first + 10}", f"o_orderkey between {first} and {first + 5}"
    statements = [
        f"insert into lineitem {lineitem('g', 'n', scale, salt, 5)} from {lines}",
        f"insert into orders {order('g', scale, salt)} from {of}",
        f"insert into customer {customer('g', salt)} from {some(3, customers + 5)}",
        f"insert into supplier {supplier('g', salt)} from {some(2, suppliers + 2)}",
        f"insert into part {part('g', salt)} from {some(4, parts + 5)}",
        f"insert into partsupp {partsupp(scale, salt)} from {some(3, parts + 5)} cross join generate_series(0, 3) p",
        f"delete from lineitem where l_orderkey between {first} and {first + random.randrange(8)}",
        f"delete from orders where o_orderkey between {first} and {first + random.randrange(4)}",
        f"delete from customer where c_custkey = {random.randrange(1, customers)}",
        f"delete from partsupp where ps_partkey = {random.randrange(1, parts)}",
        f"update lineitem set l_quantity = l_quantity + 1, l_suppkey = 1 + (l_suppkey + 1) % {suppliers} where {few}",
        f"update lineitem set l_receiptdate = l_receiptdate + {random.randint(-30, 30)} where {few}",
        f"update orders set o_custkey = {random.randrange(1, customers)}, o_orderpriority = '1-URGENT' where {those}",
        f"update supplier set s_nationkey = {random.randrange(25)} where s_suppkey = {random.randrange(1, suppliers)}",
        f"update nation set n_regionkey = {random.randrange(5)} where n_nationkey = {random.randrange(25)}",
        f"update part set p_size = 15, p_type = 'LARGE PLATED BRASS' where p_partkey = {random.randrange(1, parts)}",
    ]
    return random.choice(statements)
