"""What the planes say to each other: ids, epochs, vnodes, relations, barriers, mutations, reports.

The service and the workers share these words and nothing else. Everything here is a value: no I/O, no clock.
Standard library and pydantic only. Next: `service.domain.barrier`.
"""
