"""Define the values that the service and the workers exchange: ids, epochs, vnodes, relations, barriers, reports.

The two planes share this package and nothing else. It holds values only: no I/O and no clock. It imports the standard
library and pydantic only. Next: `service.domain.barrier`.
"""
