from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from service.domain.errors import Invalid
from service.launcher_choice import kubernetes, pods
from service.protocol.ids import DATABASE_GRAPH
from service.settings import Settings

URL = "http://127.0.0.1:8700"


def settings(account: Path, **given: Any) -> Settings:
    return Settings(launcher="kubernetes", kubernetes_account_dir=account, kubernetes_url="http://127.0.0.1:1", **given)


async def test_a_cluster_needs_a_token_that_all_services_and_workers_know(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(Invalid, match="TIDEFILL_WORKER_TOKEN"):
            kubernetes(stack, settings(tmp_path))


async def test_a_cluster_needs_a_service_account(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(Invalid, match=r"service account: .*namespace: No such file"):
            kubernetes(stack, settings(tmp_path, worker_token="hush"))


async def test_names_fit_and_differ(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("data\n")
    async with AsyncExitStack() as stack:
        given = settings(tmp_path, worker_token="hush", kubernetes_templates="t" * 63)
        cluster = pods(kubernetes(stack, given), given, URL, "i")
        names = {cluster.name(DATABASE_GRAPH, attempt) for attempt in (1, 1, 99_999)}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)
    assert any(name.startswith("ttt") and "-g1-99999-" in name for name in names)
