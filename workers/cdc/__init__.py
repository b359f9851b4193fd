"""Follow an external Postgres: decode and fold its log, and copy its tables page by page. Next:
`workers.runners.source_scan`.

`pgoutput`, `snapshots`, `keys`, `fold`, `log`, `budget`, `backoff` and `patience` are pure. `external` queries the
external database, `pages` copies history in a task, and `apply` writes the folded changes into the state store.
"""
