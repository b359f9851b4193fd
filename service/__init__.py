"""tidefill's control plane.

The map: `bootstrap` knows every concrete class; `api` and `cli` are the doors; `loops` own time; `operations` are the
verbs (one function, one transaction); `ports` say what operations need of the world; `domain` decides; `protocol`
holds the words that the workers share. Adapters: `meta_store`, `serving` (the state store as the service uses it),
`launchers`, `embedded`, `telemetry`. Arrows point down only; import contracts in `pyproject.toml` hold them there.
"""
