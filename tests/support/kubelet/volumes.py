"""Volumes of a pod, written into a local directory."""

from collections.abc import Mapping
from pathlib import Path

from tests.support.control_plane.api import Document, at
from tests.support.kubelet.calls import Calls
from tests.support.kubelet.references import AbsentError, contents, field_of


async def write_volumes(calls: Calls, pod: Document, directory: Path) -> None:
    """Make a directory for each volume, with what its source holds now. Raises AbsentError."""
    for volume in pod["spec"].get("volumes", []):
        files = await _files(calls, volume, pod)
        place = directory / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(content)


def mounts_of(container: Document, directory: Path) -> dict[str, Path]:
    """Return the local directory for each path at which a container mounts something."""
    return {
        mount["mountPath"].rstrip("/"): directory / mount["name"] / mount.get("subPath", "")
        for mount in container.get("volumeMounts", [])
    }


async def _files(calls: Calls, volume: Document, pod: Document) -> Mapping[str, bytes]:
    """Return the files of a volume, by path within it."""
    if "emptyDir" in volume:
        return {}
    if "projected" in volume:
        found: dict[str, bytes] = {}
        for source in volume["projected"]["sources"]:
            found |= await _projection(calls, source, pod)
        return found
    if "secret" in volume:
        # A volume calls its Secret otherwise than a projection does.
        source = {**volume["secret"], "name": volume["secret"]["secretName"]}
        return await _projection(calls, {"secret": source}, pod)
    return await _projection(calls, volume, pod)


async def _projection(calls: Calls, source: Document, pod: Document) -> Mapping[str, bytes]:
    if token := source.get("serviceAccountToken"):
        return {token["path"]: await _token(calls, token, pod)}
    if listed := source.get("downwardAPI"):
        return {item["path"]: field_of(pod, item["fieldRef"]["fieldPath"]).encode() for item in listed["items"]}
    for kind in ("Secret", "ConfigMap"):
        if named := source.get(f"{kind[0].lower()}{kind[1:]}"):
            optional = named.get("optional", False)
            held = await contents(calls, kind, pod["metadata"]["namespace"], named["name"], optional=optional)
            return _selected(held, named)
    raise AbsentError(f"this kubelet has no volume of {', '.join(source)}")


def _selected(held: Mapping[str, bytes], named: Document) -> Mapping[str, bytes]:
    """Return the items that the volume asks for, under their paths; all keys where it asks for none."""
    if "items" not in named:
        return held
    for item in named["items"]:
        if item["key"] not in held and not named.get("optional", False):
            raise AbsentError(f"references non-existent secret key: {item['key']}")
    return {item["path"]: held[item["key"]] for item in named["items"] if item["key"] in held}


async def _token(calls: Calls, token: Document, pod: Document) -> bytes:
    """Return a token of the pod's ServiceAccount which is bound to the pod."""
    metadata = pod["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    asked = {"expirationSeconds": token.get("expirationSeconds", 3600), "boundObjectRef": bound}
    if "audience" in token:
        asked["audiences"] = [token["audience"]]
    account = pod["spec"].get("serviceAccountName", "default")
    made = await calls.post(at("serviceaccounts", metadata["namespace"], account, "token"), {"spec": asked})
    return made["status"]["token"].encode()
