"""Pure decisions of the executors: positions, marking, paging, finishing, throttle budget."""
