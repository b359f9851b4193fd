"""Questions of the service, answered beside the epochs. Next: `workers.rpc.answer`."""
