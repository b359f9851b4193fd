"""The command of a Spark executor, from the variables by which Spark describes it in a pod."""

import pytest

from workers.executor import command

GIVEN = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "4",
    "SPARK_EXECUTOR_MEMORY": "8192m",
    "SPARK_APPLICATION_ID": "spark-ab12",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_EXECUTOR_POD_NAME": "tidefill-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_10": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_9": "-Dnote=two words",
    "SPARK_JAVA_OPTIONS": "-Dnone=this",
}


def test_it_has_all_that_spark_says_of_it() -> None:
    java, *arguments = command(GIVEN)
    assert java.endswith("java")
    place = arguments.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    # Options of a JVM come before its class, in the order of their numbers.
    assert arguments[place - 4 : place] == ["-Xms8192m", "-Xmx8192m", "-Dnote=two words", "-Dspark.driver.port=7078"]
    rest = arguments[place + 1 :]
    assert dict(zip(rest[::2], rest[1::2], strict=True)) == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.7:7078",
        "--executor-id": "3",
        "--cores": "4",
        "--app-id": "spark-ab12",
        "--hostname": "10.0.0.8",
        "--resourceProfileId": "0",
        "--podName": "tidefill-exec-3",
    }


def test_a_container_that_spark_has_not_described_is_no_executor() -> None:
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        command({"SPARK_EXECUTOR_MEMORY": "1g"})
