"""External databases that misbehave while they are followed."""

from pathlib import Path

import pytest

from tests.support.bystander import Bystander
from tests.support.hanging import way_to
from tests.support.production import external_postgres, source, sources, until_backfilled, until_equal
from tests.support.service import Service, data_directory
from tests.support.waiting import until

pytestmark = pytest.mark.e2e


@pytest.mark.soak
def test_a_server_that_hangs_holds_up_its_own_source_alone(service: Service, bystander: Bystander) -> None:
    with data_directory() as directory, external_postgres(_made(directory)) as external:
        external.run("create table t (id int primary key)", "insert into t select generate_series(1, 10)")
        with way_to(external.url) as (way, _):
            service.run(source(external, port=str(way.port)))
            service.run("CREATE TABLE t (*) FROM pg TABLE 'public.t'")
            until_backfilled(service, "t")
            with bystander.unharmed():
                way.hangs.set()
                until(lambda: "no answer" in str(sources(service)), what=lambda: str(sources(service)))
                until(lambda: "does not answer" in str(sources(service)), what=lambda: str(sources(service)))
            way.hangs.clear()
            external.run("insert into t values (11)")
            until_equal(service, external, "t")
            service.run("DROP SOURCE pg CASCADE")
            until(lambda: not external.slots(), what="no slot is left (I9)")


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o711)
    return directory
