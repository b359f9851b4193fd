"""Answer requests of the service, concurrently with the epochs. Next: `workers.rpc.answer`."""
