"""The values that a pod takes from elsewhere: from Secrets, ConfigMaps and its own fields."""

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.control_plane.api import Document, at
from tests.support.kubelet.calls import Calls

_KEYED: Final = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_VARIABLE: Final = re.compile(r"\$\((\w+)\)")
_RESOURCES: Final = {"Secret": "secrets", "ConfigMap": "configmaps"}


class AbsentError(Exception):
    """A container refers to something that is not there. The kubelet tries again until it is."""


async def contents(calls: Calls, kind: str, namespace: str, name: str, *, optional: bool = False) -> dict[str, bytes]:
    """Return what a Secret or ConfigMap holds. Raises AbsentError."""
    found = await calls.find(at(_RESOURCES[kind], namespace, name))
    if found is None:
        if optional:
            return {}
        raise AbsentError(f'{kind.lower()} "{name}" not found')
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}
    return {key: value.encode() for key, value in found.get("data", {}).items()}


def field_of(pod: Document, path: str) -> str:
    """Return a field of the pod, as the downward API names it."""
    if keyed := _KEYED.fullmatch(path):
        return pod["metadata"].get(keyed[1], {}).get(keyed[2], "")
    value = pod
    for part in path.split("."):
        value = value[part]
    assert isinstance(value, str), path
    return value


async def environment(calls: Calls, container: Document, pod: Document) -> dict[str, str]:
    """Return a container's variables. Raises AbsentError."""
    namespace = pod["metadata"]["namespace"]
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        kind, reference = (
            ("Secret", source["secretRef"]) if "secretRef" in source else ("ConfigMap", source["configMapRef"])
        )
        held = await contents(calls, kind, namespace, reference["name"], optional=reference.get("optional", False))
        found |= {source.get("prefix", "") + key: value.decode() for key, value in held.items()}
    for variable in container.get("env", []):
        if "valueFrom" not in variable:
            found[variable["name"]] = expanded(variable.get("value", ""), found)
        elif (value := await _referred(calls, variable["valueFrom"], pod)) is not None:
            found[variable["name"]] = value
    return found


async def _referred(calls: Calls, source: Document, pod: Document) -> str | None:
    """Return the value of a reference; None where it is optional and nothing is there."""
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"])
    for kind in _RESOURCES:
        if reference := source.get(f"{kind[0].lower()}{kind[1:]}KeyRef"):
            namespace, optional = pod["metadata"]["namespace"], reference.get("optional", False)
            held = await contents(calls, kind, namespace, reference["name"], optional=optional)
            if reference["key"] in held:
                return held[reference["key"]].decode()
            if optional:
                return None
            raise AbsentError(f"couldn't find key {reference['key']} in {kind} {namespace}/{reference['name']}")
    raise AbsentError(f"this kubelet has no {', '.join(source)}")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable's value; an unknown one stays."""
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)


def moved(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace a path within a mount by that of the local directory, since nothing is mounted here."""
    for path in sorted(mounts, key=len, reverse=True):
        if text == path or text.startswith(f"{path}/"):
            return str(mounts[path]) + text[len(path) :]
    return text
