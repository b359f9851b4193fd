"""The four servers of a control plane, each a process on loopback that ends when this one does."""

import os
import secrets
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.service import free_port

NODE_GRACE_SECONDS: Final = 6
"""How long a node may be silent until it counts as lost."""
_MEMORY: Final = {
    "etcd": "96MiB",
    "kube-apiserver": "320MiB",
    "kube-controller-manager": "128MiB",
    "kube-scheduler": "96MiB",
}
"""The heap that Go's collector aims at. Without a limit the heap grows to the double of what is live."""
_CONTROLLERS: Final = (
    "deployment-controller",
    "replicaset-controller",
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "resourcequota-controller",
    "disruption-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
)
"""The chart and the launcher need no other. Endpoint slices refuse loopback addresses, which pods have here."""


@dataclass
class Servers:
    """Etcd, the API server, the controllers and the scheduler, whose files are in `directory`."""

    program: Path
    directory: Path
    token: str = field(default_factory=secrets.token_hex, repr=False)
    """The token of a member of `system:masters`."""
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict[str, "subprocess.Popen[bytes]"])

    def __post_init__(self) -> None:
        self.port = free_port()
        self.etcd = f"http://127.0.0.1:{free_port()}"

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate that the API server makes for itself, which clients have to trust."""
        return self.directory / "certificates" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's, for programs that read one."""
        return self.directory / "kubeconfig"

    def start_api(self) -> None:
        """Start etcd and the API server. The latter answers once it has made its certificate."""
        self._write_key()
        tokens = self.directory / "tokens.csv"
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        tokens.chmod(0o600)
        peers = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self.etcd}",
            f"--advertise-client-urls={self.etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._start(
            "kube-apiserver",
            f"--etcd-servers={self.etcd}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.ca.parent}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={self._key}",
            f"--service-account-signing-key-file={self._key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            "--enable-priority-and-fairness=false",
        )

    def start_controllers(self) -> None:
        """Start the controllers and the scheduler, once the API server answers."""
        self._write_kubeconfig()
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        self._start(
            "kube-controller-manager",
            *common,
            f"--controllers={','.join(_CONTROLLERS)}",
            f"--service-account-private-key-file={self._key}",
            f"--root-ca-file={self.ca}",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
            "--node-monitor-period=1s",
        )
        self._start("kube-scheduler", *common)

    def assert_alive(self) -> None:
        """Assert that no server has ended, with the last lines of one that has."""
        for name, process in self.processes.items():
            assert process.poll() is None, f"{name} ended: {self.log(name).read_text(errors='replace')[-3000:]}"

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def memory_mib(self) -> dict[str, int]:
        """Return how much of each server is in memory."""
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            name: int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * page >> 20
            for name, process in self.processes.items()
        }

    def stop(self) -> None:
        """End all of them. Nothing that they hold outlives a run of the tests, so none is asked to end."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _start(self, name: str, *flags: str) -> None:
        # The pipe is closed when this process ends, however it does, and so does the server.
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [self.program, name, *flags],
                cwd=self.directory,
                env={**os.environ, "GOMEMLIMIT": _MEMORY[name], "GOMAXPROCS": "2"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _key(self) -> Path:
        return self.directory / "accounts.pem"

    def _write_key(self) -> None:
        """Make the key that signs the tokens of ServiceAccounts."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
        self._key.write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
        self._key.chmod(0o600)

    def _write_kubeconfig(self) -> None:
        self.kubeconfig.write_text(
            f"""apiVersion: v1
kind: Config
clusters: [{{name: tests, cluster: {{server: "{self.url}", certificate-authority: "{self.ca}"}}}}]
users: [{{name: admin, user: {{token: "{self.token}"}}}}]
contexts: [{{name: tests, context: {{cluster: tests, user: admin}}}}]
current-context: tests
"""
        )
        self.kubeconfig.chmod(0o600)


@contextmanager
def servers(program: Path, directory: Path) -> Generator[Servers]:
    """Have servers which end at the end, however that comes."""
    made = Servers(program, directory)
    try:
        yield made
    finally:
        made.stop()
