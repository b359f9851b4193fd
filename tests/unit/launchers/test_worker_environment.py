from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from service.launchers.worker_environment import WorkerSettings, worker_environment, worker_secrets
from service.protocol.ids import DATABASE_GRAPH, GraphId, WorkerId

SETTINGS = WorkerSettings(
    data_dir=Path("/data"),
    service_url="http://127.0.0.1:8700",
    graph=DATABASE_GRAPH,
    spark_master="local[2]",
    java_home=Path("/java"),
    worker_token=SecretStr("hush-token"),
    state_store_url=SecretStr("postgresql://owner:hush-owner@db/state"),
)
HOME = Path("/data/workers/w1")
TEMPORARY = Path("/tmp/tidefill-w1")


def _environment(inherited: dict[str, str]) -> dict[str, str]:
    return worker_environment(SETTINGS, WorkerId("w1"), home=HOME, temporary=TEMPORARY, inherited=inherited)


def test_it_says_what_the_worker_asks_for() -> None:
    environment = _environment({})
    assert environment["TIDEFILL_SERVICE_URL"] == "http://127.0.0.1:8700"
    assert environment["TIDEFILL_WORKER_ID"] == "w1"
    assert environment["TIDEFILL_GRAPH"] == "1"
    assert environment["TIDEFILL_SPARK_MASTER"] == "local[2]"
    assert environment["TIDEFILL_SECRETS_DIR"] == "/data/workers/w1/secrets"
    assert environment["JAVA_HOME"] == "/java"


def test_no_secret_of_the_service_is_handed_on() -> None:
    inherited = {
        "TIDEFILL_DATABASE_URL": "postgresql://a:hush@db/x",
        "TIDEFILL_STATE_STORE_URL": "postgresql://a:hush@db/x",
        "TIDEFILL_API_TOKEN": "hush",
        "TIDEFILL_WORKER_TOKEN": "hush",
        "PGPASSWORD": "hush",
        "PGPASSFILE": "/hush",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "GITHUB_TOKEN": "hush",
        "SPARK_AUTH_SECRET": "hush",
        "JAVA_TOOL_OPTIONS": "-Dpassword=hush",
    }
    environment = _environment({"PATH": "/bin", **inherited})
    assert environment["PATH"] == "/bin"
    assert not inherited.keys() & environment.keys()
    assert not [value for value in environment.values() if "hush" in value]


def test_what_a_python_and_a_spark_need_is_handed_on() -> None:
    inherited = {"LC_ALL": "C", "SPARK_CONF_DIR": "/c", "PYTHONPATH": "/p", "TIDEFILL_SPARK_CONF": "{}"}
    assert inherited.items() <= _environment(inherited).items()


def test_the_services_own_answers_win_over_inherited_ones() -> None:
    others = {"TIDEFILL_WORKER_ID": "other", "JAVA_HOME": "/other", "PYSPARK_PYTHON": "/other", "TMPDIR": "/other"}
    environment = _environment(others)
    assert environment["TMPDIR"] == str(TEMPORARY)
    assert environment["TIDEFILL_WORKER_ID"] == "w1"
    assert environment["JAVA_HOME"] == "/java"
    assert environment["PYSPARK_PYTHON"] != "/other"


def test_secrets_are_in_files_named_as_the_workers_settings() -> None:
    assert worker_secrets(SETTINGS) == {
        "tidefill_worker_token": "hush-token",
        "tidefill_state_store_url": "postgresql://owner:hush-owner@db/state",
    }


def test_the_worker_of_another_graph_may_have_slots_and_settings_of_its_own() -> None:
    same = SETTINGS.of_graph(GraphId(7))
    asked = replace(SETTINGS, serverless_spark_master="local[4]", serverless_spark_conf='{"a": "b"}')
    inherited = {"TIDEFILL_SPARK_CONF": '{"c": "d"}'}

    def told(settings: WorkerSettings) -> list[str]:
        environment = worker_environment(settings, WorkerId("w1"), home=HOME, temporary=TEMPORARY, inherited=inherited)
        return [environment[f"TIDEFILL_{name}"] for name in ("GRAPH", "SPARK_MASTER", "SPARK_CONF")]

    assert told(same) == ["7", "local[2]", '{"c": "d"}']
    assert told(asked.of_graph(GraphId(7))) == ["7", "local[4]", '{"a": "b"}']
    assert told(asked.of_graph(DATABASE_GRAPH)) == ["1", "local[2]", '{"c": "d"}']


def test_settings_print_no_secret() -> None:
    assert "hush" not in repr(SETTINGS)
