"""The differential generator (I12): views and live changes from a seed, each compared with the `SELECT` of its text.

`grammar` has the language, `values` the rows, `worlds` puts both together as plain data, `run` lives through a world on
a real Spark and a real Postgres, `oracle` asks Postgres, `examine` sorts out what must fail, `excluded` lists what is
known to differ. One world:

    python -m tests.differential SEED [LAST_SEED]
"""
