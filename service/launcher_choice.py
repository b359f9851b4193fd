"""Make what starts workers from the settings: as processes of this service, or as pods of a cluster."""

import json
import os
import secrets
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from service.domain.errors import Invalid
from service.embedded.java import find_java
from service.launchers.kubernetes.client import KubernetesClient
from service.launchers.kubernetes.cluster import KubernetesCluster, profiles
from service.launchers.subprocess import SubprocessLauncher
from service.launchers.worker_environment import WorkerSettings
from service.loops.system_clock import SystemClock
from service.ports.launcher import Cluster, Launcher, Profiles
from service.protocol.ids import DATABASE_GRAPH, WorkerId
from service.settings import Settings


def subprocesses(
    settings: Settings,
    url: str,
    worker_token: SecretStr,
    state_store_url: SecretStr,
    on_end: Callable[[], None],
) -> Launcher:
    """Return what starts workers on this machine."""
    own_conf = settings.serverless_spark_conf
    worker = WorkerSettings(
        data_dir=settings.data_dir.resolve(),
        service_url=url,
        graph=DATABASE_GRAPH,
        spark_master=settings.spark_master,
        java_home=find_java(os.environ),
        worker_token=worker_token,
        state_store_url=state_store_url,
        serverless_spark_master=settings.serverless_spark_master,
        serverless_spark_conf=None if own_conf is None else json.dumps(own_conf),
    )
    Path(worker.data_dir).mkdir(parents=True, exist_ok=True)
    return SubprocessLauncher(worker, clock=SystemClock(), new_worker_id=_new_worker_id, on_end=on_end)


def kubernetes(stack: AsyncExitStack, settings: Settings) -> KubernetesClient:
    """Return a client of the cluster's API. Raises Invalid if this service is no pod of it, or lacks its token."""
    if settings.worker_token is None:
        # Each service would make another one, and pods are created from a template, which has none of them.
        raise Invalid("TIDEFILL_LAUNCHER=kubernetes needs TIDEFILL_WORKER_TOKEN")
    try:
        client = KubernetesClient(
            settings.kubernetes_url, settings.kubernetes_account_dir, namespace=settings.kubernetes_namespace
        )
    except OSError as error:
        raise Invalid(
            f"TIDEFILL_LAUNCHER=kubernetes needs the files of a service account: {error.filename}: {error.strerror}"
        ) from error
    stack.push_async_callback(client.close)
    return client


def profiles_of(client: KubernetesClient | None, settings: Settings) -> Profiles | None:
    """Return what lists the profiles of workers, or None if workers are no pods."""
    return None if client is None else partial(profiles, client, settings.kubernetes_templates)


def pods(client: KubernetesClient, settings: Settings, url: str, installation: str) -> Cluster:
    """Return the Kubernetes cluster of the settings."""
    return KubernetesCluster(
        client,
        templates=settings.kubernetes_templates,
        installation=installation,
        service_url=url,
        clock=SystemClock(),
        chance=lambda: secrets.token_hex(2),
    )


def _new_worker_id() -> WorkerId:
    return WorkerId(str(uuid.uuid4()))  # noqa: TID251 - identities are made here
