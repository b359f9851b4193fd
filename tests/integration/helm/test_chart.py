"""The chart, rendered: valid for the cluster, strict about its values, and free of secrets."""

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from service.bootstrap import DRAIN
from service.domain.claims import oidc_rules
from service.domain.launching import Launch, OwnJob
from service.domain.roles import Role
from service.launchers.kubernetes.pods import Templates, pod_name, pod_of
from service.protocol.ids import DATABASE_GRAPH, GraphId, JobId
from service.settings import Settings as ServiceSettings
from tests.support.dashboard import dashboard
from tests.support.helm import find_helm
from tests.support.meta_store import NOW
from workers.settings import Settings as WorkerSettings

# The first test may have to build helm.
pytestmark = pytest.mark.timeout(1200)

CHART = Path(__file__).parents[3] / "helm" / "tidefill"
KUBERNETES = "1.33"
OPERATOR = "monitoring.coreos.com/"
"""The kinds of Prometheus's operator are not Kubernetes's own."""
VALUE_SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "fullnameOverride": "tides",
        "imagePullSecrets": ["pull-credentials"],
        "secrets": {"existingSecret": "vault-made", "keys": {"databaseUrl": "DB_URL"}},
        "serviceAccount": {"annotations": {"example.com/role": "reader"}},
        "service": {
            "image": {"repository": "example.com/tidefill/service", "tag": "0.1.0-3"},
            "oidc": {
                "issuer": "https://login.example/realms/shop",
                "audience": "tidefill",
                "roles": {"sre's": "operator", "staff": "viewer"},
            },
            "rootPath": "/tidefill",
            "lakeRoots": ["/lake", "s3://bucket/tables"],
            "type": "LoadBalancer",
            "port": 80,
            "replicas": 3,
            "podAnnotations": {"prometheus.io/scrape": "true"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "affinity": {"podAntiAffinity": {}},
        },
        "worker": {"sparkMaster": "local[4]", "sparkConf": {"spark.driver.memory": "3g"}, "scratchSize": "50Gi"},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "tides.example",
            "tlsSecret": "tides-certificate",
            "annotations": {"nginx.ingress.kubernetes.io/affinity": "cookie"},
        },
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "data"}}}]},
        "telemetry": {"otel": {"endpoint": "http://collector.example:4318", "ratio": 0.25}},
        "monitoring": {
            "labels": {"release": "prometheus"},
            "serviceMonitor": {"enabled": True, "tokenKey": "viewer-token"},
            "rules": {"enabled": True},
            "dashboard": {"enabled": True},
        },
    },
    "standalone": {"worker": {"sparkMaster": "spark://spark.example:7077", "sparkConf": {"spark.cores.max": "8"}}},
    "kubernetes": {
        "worker": {
            "sparkMaster": "k8s://https://kubernetes.default.svc",
            "sparkConf": {"spark.kubernetes.container.image": "example.com/tidefill/executor:1"},
        },
        "networkPolicy": {"enabled": True, "executors": [{"podSelector": {"matchLabels": {"spark-role": "executor"}}}]},
    },
    "launcher": {
        "worker": {
            "launcher": "kubernetes",
            "startSeconds": 900,
            "sparkConf": {"spark.driver.memory": "3g"},
            "profiles": {
                "database": {"nodeSelector": {"pool": "steady"}},
                "serverless": {
                    "sparkMaster": "local[2]",
                    "sparkConf": {"spark.driver.memory": "1g"},
                    "priorityClassName": "cheap",
                    "resources": {"limits": {"memory": "2Gi"}},
                },
            },
        },
        "networkPolicy": {"enabled": True},
    },
    "least": {
        "serviceAccount": {"create": False},
        "migration": {"enabled": False},
        "service": {"replicas": 1},
    },
}
WRONG: dict[str, dict[str, Any]] = {
    "unknown value": {"service": {"replica": 3}},
    "no service": {"service": {"replicas": 0}},
    "unknown section": {"gateway": {"enabled": True}},
    "ingress without a host": {"ingress": {"enabled": True}},
    "root path": {"service": {"rootPath": "tidefill/"}},
    "lake root": {"service": {"lakeRoots": ["lake"]}},
    "password of a collector": {"telemetry": {"otel": {"endpoint": "http://u:p@collector.example:4318"}}},
    "more than all epochs": {"telemetry": {"otel": {"ratio": 2}}},
    "role": {"service": {"oidc": {"issuer": "https://login.example", "roles": {"sre": "root"}}}},
    "keys in the clear": {"service": {"oidc": {"issuer": "http://login.example"}}},
    "type": {"service": {"port": "http"}},
    "range": {"service": {"port": 70000}},
    "unpinned image": {"worker": {"image": {"tag": "latest"}}},
    "no secret": {"secrets": {"existingSecret": ""}},
    "secret value": {"secrets": {"apiToken": "hush"}},
    "spark master": {"worker": {"sparkMaster": "yarn"}},
    "launcher": {"worker": {"launcher": "jobs"}},
    "profile": {"worker": {"profiles": {"Cheap ones": {}}}},
    "value of a profile": {"worker": {"profiles": {"database": {"logLevel": "debug"}}}},
    "spark conf": {"worker": {"sparkConf": {"spark.hadoop.fs.s3a.secret.key": "hush"}}},
    "quantity": {"worker": {"resources": {"limits": {"memory": "much"}}}},
}


@pytest.fixture(scope="module")
def helm() -> Path:
    found = find_helm()
    if found is None:
        pytest.skip("needs helm, or Go to build it")
    return found


def _run(helm: Path, values: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm, *arguments, "--kube-version", f"{KUBERNETES}.0", "--values", "-"],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
    )


def _rendered(helm: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    ran = _run(helm, values, "template", "release", str(CHART), "--namespace", "data")
    assert ran.returncode == 0, ran.stderr
    return [manifest for manifest in yaml.safe_load_all(ran.stdout) if manifest]


def _pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    templates = [one["spec"]["template"] for one in manifests if one["kind"] in {"Deployment", "Job"}]
    templates += [one for profile, one in _profiles(manifests).items() if profile == "database"]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"] for one in templates}


def _profiles(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the templates of the launcher."""
    found = [one["data"] for one in _of(manifests, "ConfigMap") if one["metadata"]["name"].endswith("-worker")]
    return {name.removesuffix(".json"): json.loads(text) for data in found for name, text in data.items()}


def _of(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def _secret_files(pod: dict[str, Any]) -> dict[str, str]:
    (volume,) = [volume for volume in pod["volumes"] if "secret" in volume]
    return {item["path"]: item["key"] for item in volume["secret"]["items"]}


def _variables(pod: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in pod["containers"][0]["env"]}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_it_passes_the_lint(helm: Path, values: dict[str, Any]) -> None:
    ran = _run(helm, values, "lint", "--strict", str(CHART))
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_manifest_is_what_kubernetes_takes(helm: Path, values: dict[str, Any]) -> None:
    manifests = _rendered(helm, values)
    for manifest in manifests:
        if not manifest["apiVersion"].startswith(OPERATOR):
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    kinds = sorted(manifest["kind"] for manifest in manifests)
    assert {"Deployment", "Service"} <= set(kinds)
    assert kinds.count("Job") == (0 if values == VALUE_SETS["least"] else 1)
    assert kinds.count("NetworkPolicy") == (2 if values.get("networkPolicy") else 0)


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_refused(helm: Path, values: dict[str, Any]) -> None:
    ran = _run(helm, values, "template", "release", str(CHART))
    assert ran.returncode != 0
    assert "don't meet the specifications of the schema" in ran.stderr


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_secrets_are_references_only(helm: Path, values: dict[str, Any]) -> None:
    manifests = _rendered(helm, values)
    assert "Secret" not in {manifest["kind"] for manifest in manifests}
    for component, pod in _pods(manifests).items():
        for variable in pod["containers"][0]["env"]:
            named = any(word in variable["name"] for word in ("TOKEN", "DATABASE_URL", "STORE_URL", "PASSWORD"))
            assert not (named and "value" in variable), variable["name"]
            given = variable["name"] == "SPARK_LOCAL_HOSTNAME"
            assert component == "migration" or given or "valueFrom" not in variable


def test_each_pod_sees_the_secrets_it_needs_and_no_other(helm: Path) -> None:
    pods = _pods(_rendered(helm, VALUE_SETS["everything"]))
    assert _secret_files(pods["service"]) == {
        "tidefill_database_url": "DB_URL",
        "tidefill_state_store_url": "state-store-url",
        "tidefill_api_token": "api-token",
        "tidefill_worker_token": "worker-token",
    }
    assert _secret_files(pods["worker"]) == {
        "tidefill_state_store_url": "state-store-url",
        "tidefill_worker_token": "worker-token",
    }
    assert not [volume for volume in pods["migration"]["volumes"] if "secret" in volume]


def test_variables_and_files_are_the_settings_own(helm: Path) -> None:
    pods = _pods(_rendered(helm, VALUE_SETS["everything"]))
    for component, settings in (("service", ServiceSettings), ("worker", WorkerSettings)):
        known = {f"tidefill_{field}" for field in settings.model_fields}
        ours = {name.lower() for name in _variables(pods[component]) if name.startswith("TIDEFILL_")}
        assert (ours - {"tidefill_secrets_dir"}) | _secret_files(pods[component]).keys() <= known


def test_the_settings_accept_what_the_chart_says(helm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = _pods(_rendered(helm, VALUE_SETS["everything"]))
    for component, settings in (("service", ServiceSettings), ("worker", WorkerSettings)):
        directory = tmp_path / component
        directory.mkdir()
        for name in _secret_files(pods[component]):
            (directory / name).write_text("hush")
        with monkeypatch.context() as environment:
            for name, value in _variables(pods[component]).items():
                environment.setenv(name, value)
            read = settings(_secrets_dir=str(directory))  # pyright: ignore[reportCallIssue] - pydantic-settings' own
        assert read.worker_token is not None
        assert read.worker_token.get_secret_value() == "hush"
        if isinstance(read, ServiceSettings):
            rules = oidc_rules(read.oidc_issuer, read.oidc_audience, read.oidc_role_claim, read.oidc_roles)
            assert rules is not None
            assert rules.roles == {"sre's": Role.OPERATOR, "staff": Role.VIEWER}


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_pods_may_do_little(helm: Path, values: dict[str, Any]) -> None:
    for pod in _pods(_rendered(helm, values)).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        named = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        creates_pods = (
            named.get("TIDEFILL_SPARK_MASTER", "").startswith("k8s://")
            or named.get("TIDEFILL_LAUNCHER") == "kubernetes"
        )
        assert pod["automountServiceAccountToken"] is creates_pods
        # A Service called `tidefill` would set TIDEFILL_PORT to an address.
        assert pod["enableServiceLinks"] is False
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["memory"]
        written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert "/tmp" in written


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_executors_of_a_cluster_reach_the_driver(helm: Path, values: dict[str, Any]) -> None:
    manifests = _rendered(helm, values)
    pod = _pods(manifests)["worker"]
    master, conf = (_variables(pod).get(f"TIDEFILL_SPARK_{name}", "") for name in ("MASTER", "CONF"))
    assert json.loads(conf or "{}") == values.get("worker", {}).get("sparkConf", {})
    named = [one for one in pod["containers"][0]["env"] if one["name"] == "SPARK_LOCAL_HOSTNAME"]
    at = {"name": "SPARK_LOCAL_HOSTNAME", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert named == ([] if master.startswith("local") else [at])
    bound = [
        one["subjects"][0] for one in _of(manifests, "RoleBinding") if one["roleRef"]["name"].endswith("-executors")
    ]
    account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "data"}
    assert bound == ([account] if master.startswith("k8s://") else [])
    if values.get("networkPolicy"):
        (policy,) = (
            one["spec"]
            for one in manifests
            if one["kind"] == "NetworkPolicy" and one["metadata"]["name"].endswith("-worker")
        )
        peers = values["networkPolicy"].get("executors")
        assert policy.get("ingress") == (peers and [{"from": peers}])


def test_a_service_that_is_not_ready_can_be_reached_by_its_worker(helm: Path) -> None:
    manifests = _rendered(helm, {})
    services = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in manifests if manifest["kind"] == "Service"
    }
    assert _variables(_pods(manifests)["worker"])["TIDEFILL_SERVICE_URL"] == "http://release-internal:8700"
    assert services["release-internal"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in services["release"]


def test_the_migration_comes_first_and_there_is_one_of_each(helm: Path) -> None:
    manifests = _rendered(helm, {})
    (job,) = [manifest for manifest in manifests if manifest["kind"] == "Job"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["migrate"]
    deployments = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in _of(manifests, "Deployment")
    }
    found = {name: (one["spec"]["replicas"], one["spec"]["strategy"]["type"]) for name, one in deployments.items()}
    assert found == {"service": (2, "RollingUpdate"), "worker": (1, "RollingUpdate")}


def test_services_that_take_over_are_never_all_away(helm: Path) -> None:
    for values, budgets in (({}, 1), ({"service": {"replicas": 1}}, 0)):
        manifests = _rendered(helm, values)
        found = _of(manifests, "PodDisruptionBudget")
        assert [one["spec"]["maxUnavailable"] for one in found] == [1] * budgets
        (service,) = [
            one
            for one in _of(manifests, "Deployment")
            if one["metadata"]["labels"]["app.kubernetes.io/component"] == "service"
        ]
        assert service["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        template = service["spec"]["template"]
        (spread,) = template["spec"]["topologySpreadConstraints"]
        for selector in (spread["labelSelector"], *(one["spec"]["selector"] for one in found)):
            assert selector["matchLabels"].items() <= template["metadata"]["labels"].items()
        # The pod ends in time: the wait before the signal, and what the service waits for after it.
        assert template["spec"]["terminationGracePeriodSeconds"] > DRAIN.total_seconds() + 3


def test_what_watches_it_finds_it(helm: Path) -> None:
    manifests = _rendered(helm, VALUE_SETS["everything"])
    (monitor,) = _of(manifests, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (scraped,) = [one for one in _of(manifests, "Service") if wanted.items() <= one["metadata"]["labels"].items()]
    assert scraped["spec"]["publishNotReadyAddresses"] is True
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in scraped["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "vault-made", "key": "viewer-token"}
    (rules,) = _of(manifests, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text())
    (shown,) = [one for one in _of(manifests, "ConfigMap") if "grafana_dashboard" in one["metadata"]["labels"]]
    assert json.loads(shown["data"]["tidefill.json"]) == dashboard()
    for one in (monitor, rules, shown):
        assert one["metadata"]["labels"]["release"] == "prometheus"
    assert not [one for one in _rendered(helm, {}) if one["apiVersion"].startswith(OPERATOR)]


def test_a_launcher_has_templates_of_its_pods_and_little_more_rights_than_it_needs(helm: Path) -> None:
    manifests = _rendered(helm, VALUE_SETS["launcher"])
    assert [one["metadata"]["name"] for one in _of(manifests, "Deployment")] == ["release"]
    variables = _variables(_pods(manifests)["service"])
    assert variables["TIDEFILL_LAUNCHER"] == "kubernetes"
    assert variables["TIDEFILL_KUBERNETES_START_SECONDS"] == "900"
    assert variables["TIDEFILL_PUBLIC_URL"] == "http://release-internal:8700"
    (templates,) = _of(manifests, "ConfigMap")
    assert variables["TIDEFILL_KUBERNETES_TEMPLATES"] == templates["metadata"]["name"]
    (role,) = _of(manifests, "Role")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list", "delete"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["release-worker"], "verbs": ["get"]},
    ]
    (binding,) = _of(manifests, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = _pods(manifests)["service"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "data"}]
    policies = {
        one["metadata"]["name"]: one["spec"]["podSelector"]["matchLabels"] for one in _of(manifests, "NetworkPolicy")
    }
    for template in _profiles(manifests).values():
        assert policies["release-worker"].items() <= template["metadata"]["labels"].items()


def test_profiles_are_the_worker_with_other_values(helm: Path) -> None:
    manifests = _rendered(helm, VALUE_SETS["launcher"])
    profiles = {name: one["spec"] for name, one in _profiles(manifests).items()}
    assert profiles["database"]["nodeSelector"] == {"pool": "steady"}
    assert "nodeSelector" not in profiles["serverless"]
    assert "priorityClassName" not in profiles["database"]
    assert profiles["serverless"]["priorityClassName"] == "cheap"
    (container,) = profiles["serverless"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "3Gi"}, "limits": {"memory": "2Gi"}}
    assert json.loads(_variables(profiles["serverless"])["TIDEFILL_SPARK_CONF"]) == {"spark.driver.memory": "1g"}
    (deployment,) = [
        one for one in _of(_rendered(helm, {}), "Deployment") if one["metadata"]["name"] == "release-worker"
    ]
    plain = _profiles(_rendered(helm, {"worker": {"launcher": "kubernetes"}}))
    assert plain["database"] == plain["serverless"] == deployment["spec"]["template"]


def test_the_service_makes_valid_pods_of_the_templates(helm: Path) -> None:
    (config_map,) = _of(_rendered(helm, VALUE_SETS["launcher"]), "ConfigMap")
    config_map["metadata"]["uid"] = "5a0c1f3e-0000-4000-8000-000000000001"
    templates = Templates.of(config_map)
    its_job = OwnJob(JobId(9))
    for graph, own, profile in ((DATABASE_GRAPH, None, "database"), (GraphId(7), its_job, "serverless")):
        assert templates.profile(own) == profile
        launch = Launch(pod_name(templates.name, graph, 1, "ab12"), graph, 1, NOW)
        pod = pod_of(launch, own, templates, installation="i", service_url="http://release-internal:8700")
        kubernetes_validate.validate(dict(pod), KUBERNETES, strict=True)
        assert pod["metadata"]["name"] == f"release-worker-g{graph}-1-ab12"
        variables = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
        assert len(set(variables)) == len(variables)
