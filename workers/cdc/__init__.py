"""Following an external Postgres: its log decoded and folded, its tables' pages copied. Next:
`workers.runners.source_scan`.

`pgoutput`, `snapshots`, `keys` and `fold` are pure; `external` reaches the external database, `pages` copies history
in a task, `apply` writes what was folded into the state store.
"""
