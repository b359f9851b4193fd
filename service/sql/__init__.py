"""The language: parse, bind, plan. A statement's text in, domain values out; sqlglot lives here and nowhere else."""
