"""Make the pod of a worker from the template of its profile.

The templates are whole pods, as JSON, in one ConfigMap of the chart: a key `<profile>.json` each. The service adds the
name, labels, the owner, and the variables by which a worker knows who it is.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from service.domain.launching import Launch, OwnJob
from service.launchers.kubernetes.client import Document
from service.launchers.kubernetes.judge import CONTAINER
from service.protocol.ids import GraphId, WorkerId

DATABASE, SERVERLESS = "database", "serverless"
"""The profiles of workers of the database graph and of single jobs. Without the second, both have the first. A job may
name another one as its resource group.
"""
NAME_MAX: Final = 63
"""A pod's name is its host name, too."""
TEMPLATE: Final = "tidefill.dev/template"
"""The label with the hash of the template that a pod was made from."""
_ENDING: Final = ".json"


class TemplateError(ValueError):
    """A template is no pod."""


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of an installation, and the ConfigMap that owns all of its workers.

    An owner is collected with everything that it owns: removing the chart removes the workers, while the end of a
    service's pod does not.
    """

    name: str
    uid: str
    texts: Mapping[str, str]

    @staticmethod
    def of(config_map: Document) -> "Templates":
        """Read a ConfigMap."""
        data: Mapping[str, str] = config_map.get("data") or {}
        texts = {name.removesuffix(_ENDING): text for name, text in data.items() if name.endswith(_ENDING)}
        return Templates(config_map["metadata"]["name"], config_map["metadata"]["uid"], texts)

    def profile(self, own: OwnJob | None) -> str:
        """Return the profile of the worker of a job, or of the database graph (None)."""
        if own is None:
            return DATABASE
        return own.resource_group or (SERVERLESS if SERVERLESS in self.texts else DATABASE)

    def hash(self, profile: str) -> str:
        """Return what changes with the template."""
        return hashlib.sha256(self.texts[profile].encode()).hexdigest()[:12]


def pod_name(prefix: str, graph: GraphId, attempt: int, chance: str) -> WorkerId:
    """Return a name of at most 63 characters. `chance` sets restored copies of one installation apart."""
    ending = f"-g{graph}-{attempt}-{chance}"
    return WorkerId(prefix[: NAME_MAX - len(ending)].rstrip("-.") + ending)


def pod_of(
    launch: Launch, own: OwnJob | None, templates: Templates, *, installation: str, service_url: str
) -> Document:
    """Return the pod of a launch. Raises TemplateError."""
    profile = templates.profile(own)
    template = _template(profile, templates)
    spec: Mapping[str, Any] = template["spec"]
    metadata: Mapping[str, Any] = template.get("metadata") or {}
    given = [
        {"name": "TIDEFILL_WORKER_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TIDEFILL_GRAPH", "value": str(launch.graph)},
        {"name": "TIDEFILL_SERVICE_URL", "value": service_url},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": launch.worker,
            "labels": {
                **(metadata.get("labels") or {}),
                **labels_of(templates.name, installation),
                "tidefill.dev/graph": str(launch.graph),
                "tidefill.dev/resource-group": profile,
                **({} if own is None else {"tidefill.dev/job": str(own.job)}),
                TEMPLATE: templates.hash(profile),
            },
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": templates.name, "uid": templates.uid},
            ],
        },
        "spec": {
            **spec,
            # One pod is one worker. The service decides what comes after it.
            "restartPolicy": "Never",
            "containers": [_with(given, one, spec["containers"]) for one in spec["containers"]],
        },
    }


def labels_of(templates: str, installation: str) -> Mapping[str, str]:
    """Return the labels by which an installation finds its workers.

    A restored copy of the meta store has the same installation, and so is kept apart by the name of the templates.
    """
    return {
        "app.kubernetes.io/component": "worker",
        "app.kubernetes.io/managed-by": "tidefill",
        "tidefill.dev/installation": installation,
        "tidefill.dev/templates": templates,
    }


def _template(profile: str, templates: Templates) -> Mapping[str, Any]:
    place = f"{profile}{_ENDING} of the ConfigMap {templates.name}"
    if profile not in templates.texts:
        known = ", ".join(sorted(templates.texts)) or "none"
        raise TemplateError(f"there is no template {place}. The profiles of workers are: {known}")
    try:
        read: object = json.loads(templates.texts[profile])
    except json.JSONDecodeError as error:
        raise TemplateError(f"the template {place} is no JSON: {error}") from error
    template = cast("Mapping[str, Any]", read) if isinstance(read, dict) else {}
    if not (template.get("spec") or {}).get("containers"):
        raise TemplateError(f"the template {place} has no spec.containers")
    return template


def _with(given: list[dict[str, Any]], container: Mapping[str, Any], all_: list[Any]) -> Mapping[str, Any]:
    """Return the worker's container with the variables that are given; another one as it is."""
    if container.get("name") != CONTAINER and len(all_) > 1:
        return container
    names = {one["name"] for one in given}
    own = [one for one in container.get("env") or () if one.get("name") not in names]
    return {**container, "env": [*own, *given]}
