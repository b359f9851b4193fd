"""tidefill's control plane.

`bootstrap` is the only module that knows every concrete class. `api` and `cli` parse calls and render answers. `loops`
own the ticks. `operations` are the verbs: each reads, decides and records in one transaction. `ports` state what
operations need, `sql` reads statements, `domain` decides, `protocol` holds the values that the workers share.

The adapters are `meta_store`, `serving` (the state store as the service uses it), `sources` (external servers),
`launchers`, `parsing` and `columnar` (child processes), `probes`, `embedded` and `telemetry`. Imports point down only;
the contracts are in `pyproject.toml`.
"""
