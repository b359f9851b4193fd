"""The differential generators (I12): views from a seed, each compared with the `SELECT` of its text.

Of expressions over one table, `grammar` has the language, `values` the rows, `worlds` puts both together as plain data,
`oracle` asks Postgres, `examine` compares what the state store's text and Spark make of them, and `excluded` lists what
is known to differ. One world:

    python -m tests.differential SEED [LAST_SEED]

`stage_*` has whole queries, and lives through their changes.
"""
