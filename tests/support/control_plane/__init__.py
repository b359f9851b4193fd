"""A Kubernetes control plane for tests: etcd, API server, controllers and scheduler on loopback."""
