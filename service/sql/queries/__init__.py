"""The planner of queries: a join, an aggregate or a subquery becomes a chain of stages.

Begin with `plan`. `selects` reads one SELECT, `tables` its FROM, `subqueries` the subqueries of its conditions,
`aggregates`, `windows` and `sets` the operators above it. All of them build `blocks`, whose `keys` decide the key of
their rows. `relations` has the hidden relations between stages, and `drafts` and `finishing` what the service gets.

An expression is a tree (`nodes`) until `finishing` prints it, in Postgres's SQL and, by `spark`, in Spark's.
"""
