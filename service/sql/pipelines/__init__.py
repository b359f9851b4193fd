"""Read projects of Spark Declarative Pipelines: Spark's SQL becomes statements of tidefill, or is refused.

`files` reads the statements around queries, `meaning` turns a query into one with the same meaning, `datasets` joins
both with the specification, and `comparing` compares with what a service holds. `service.domain.pipelines` plans.
"""
