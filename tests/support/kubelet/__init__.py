"""A kubelet for tests: it runs the containers of pods as local processes."""
