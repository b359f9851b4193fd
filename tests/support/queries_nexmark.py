# ruff: noqa: E501 - a query stands as it is written
"""Nexmark's tables and queries in RisingWave's form, over tables with keys and in Postgres's SQL.

TUMBLE is `date_bin`, and HOP a join with the shifts of its windows, because Postgres has neither. Functions of a query
that Postgres does not have either (q14's `count_char`) are written with those that it has.
"""

from typing import Final

TABLES: Final = {
    "person": """create table person (id bigint primary key, name text, email_address text, credit_card text,
        city text, state text, date_time timestamp, extra text)""",
    "auction": """create table auction (id bigint primary key, item_name text, description text, initial_bid bigint,
        reserve bigint, date_time timestamp, expires timestamp, seller bigint, category bigint, extra text)""",
    "bid": """create table bid (id bigint primary key, auction bigint, bidder bigint, price bigint, channel text,
        url text, date_time timestamp, extra text)""",
    "side_input": "create table side_input (key bigint primary key, value text)",
    "shift": "create table shift (seconds integer primary key)",
}
"""The CREATE TABLE of each table, by its name. `bid` has a key of its own; `shift` has the shifts of HOP's windows."""

QUERIES: Final = {
    "q0": "select auction, bidder, price, date_time from bid",
    "q1": "select auction, bidder, 0.908 * price as price, date_time from bid",
    "q2": "select auction, price from bid where auction in (1007, 1020, 2001, 2019, 2087, 3, 5)",
    "q3": """
select p.name, p.city, p.state, a.id
from auction as a inner join person as p on a.seller = p.id
where a.category = 10 and (p.state = 'or' or p.state = 'id' or p.state = 'ca')""",
    "q4": """
select q.category, avg(q.final) as avg
from (
    select max(b.price) as final, a.category
    from auction a, bid b
    where a.id = b.auction and b.date_time between a.date_time and a.expires
    group by a.id, a.category) q
group by q.category""",
    "q5": """
with windows as (
    select auction, date_bin('2 seconds', date_time, timestamp '2001-01-01') - seconds * interval '1 second' as starttime
    from bid cross join shift)
select auction_bids.auction, auction_bids.num
from (select auction, count(*) as num, starttime from windows group by auction, starttime) as auction_bids
join (
    select max(count_bids.num) as maxn, count_bids.starttime as starttime_c
    from (select count(*) as num, starttime from windows group by auction, starttime) as count_bids
    group by count_bids.starttime) as max_bids
on auction_bids.starttime = max_bids.starttime_c and auction_bids.num >= max_bids.maxn""",
    "q7": """
select b.auction, b.price, b.bidder, b.date_time
from bid b
join (
    select max(price) as maxprice, date_bin('10 seconds', date_time, timestamp '2001-01-01') + interval '10 seconds'
        as date_time
    from bid
    group by date_bin('10 seconds', date_time, timestamp '2001-01-01')) b1
on b.price = b1.maxprice
where b.date_time between b1.date_time - interval '10 seconds' and b1.date_time""",
    "q8": """
select p.id, p.name, p.starttime
from (
    select id, name, date_bin('10 seconds', date_time, timestamp '2001-01-01') as starttime
    from person
    group by id, name, date_bin('10 seconds', date_time, timestamp '2001-01-01')) p
join (
    select seller, date_bin('10 seconds', date_time, timestamp '2001-01-01') as starttime
    from auction
    group by seller, date_bin('10 seconds', date_time, timestamp '2001-01-01')) a
on p.id = a.seller and p.starttime = a.starttime""",
    "q9": """
select id, item_name, description, initial_bid, reserve, date_time, expires, seller, category, auction, bidder, price,
    bid_date_time
from (
    select a.*, b.auction, b.bidder, b.price, b.date_time as bid_date_time,
        row_number() over (partition by a.id order by b.price desc, b.date_time asc) as rownum
    from auction a, bid b
    where a.id = b.auction and b.date_time between a.date_time and a.expires) q
where rownum <= 1""",
    "q13": """
select b.auction, b.bidder, b.price, b.date_time, s.value
from bid b join side_input s on mod(b.auction, 10) = s.key""",
    "q14": """
select auction, bidder, 0.908 * price as price,
    case
        when extract(hour from date_time) >= 8 and extract(hour from date_time) <= 18 then 'dayTime'
        when extract(hour from date_time) <= 6 or extract(hour from date_time) >= 20 then 'nightTime'
        else 'otherTime'
    end as bid_time_type,
    date_time, length(extra) - length(replace(extra, 'c', '')) as c_counts
from bid
where 0.908 * price > 100 and 0.908 * price < 50000""",
    "q17": """
select auction, to_char(date_time, 'YYYY-MM-DD') as day, count(*) as total_bids,
    count(*) filter (where price < 10000) as rank1_bids,
    count(*) filter (where price >= 10000 and price < 1000000) as rank2_bids,
    count(*) filter (where price >= 1000000) as rank3_bids,
    min(price) as min_price, max(price) as max_price, avg(price) as avg_price, sum(price) as sum_price
from bid
group by auction, to_char(date_time, 'YYYY-MM-DD')""",
    "q18": """
select auction, bidder, price, channel, url, date_time
from (
    select *, row_number() over (partition by bidder, auction order by date_time desc) as rank_number from bid) q
where rank_number <= 1""",
    "q19": """
select *
from (select *, row_number() over (partition by auction order by price desc) as rank_number from bid) q
where rank_number <= 10""",
    "q20": """
select auction, bidder, price, channel, url, b.date_time as bid_date_time, b.extra as bid_extra, item_name, description,
    initial_bid, reserve, a.date_time as auction_date_time, expires, seller, category, a.extra as auction_extra
from bid b inner join auction a on b.auction = a.id
where a.category = 10""",
    "q22": """
select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
    split_part(url, '/', 6) as dir3
from bid""",
}
"""The queries, by their names."""

ROWS: Final = """
insert into shift select n * 2 from generate_series(0, 4) n;
insert into side_input select n, 'v' || n from generate_series(0, 9) n;
insert into person select n, 'n' || n % 7, 'e', 'c', 'city', (array['or', 'id', 'ca', 'ny'])[1 + n % 4],
    timestamp '2024-01-01' + n * interval '3 seconds', null from generate_series(1, 30) n;
insert into auction select n, 'item', 'd', 5, 10, timestamp '2024-01-01' + n * interval '2 seconds',
    timestamp '2024-01-01' + (n + 30) * interval '2 seconds', 1 + floor(random() * 30)::int, 10 + n % 3, 'x'
    from generate_series(1, 40) n;
insert into bid select n, 1 + floor(random() * 45)::int, 1 + floor(random() * 30)::int, 10 + floor(random() * 60)::int * 40,
    'ch', 'https://a/b/c/d' || n, timestamp '2024-01-01' + random() * 100 * interval '1 second', 'accbc'
    from generate_series(1, 150) n;
"""
"""Statements that fill the tables in a Postgres. `setseed` before makes them repeatable."""
