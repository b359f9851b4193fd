"""`make bench`: figures and ratios of one run, printed beside what they should be. Nothing here fails for being slow.

`__main__` reads the options and goes through `measurements`, `catching_up`, `creating_jobs` and `many_views` on one
service; `figures` holds the arithmetic and the table. What they measure with: `tables` (loading), `baselines` (Postgres
alone, Spark JDBC), `writers` (live changes), `barriers` (latencies), `memory` (what processes take).
"""
