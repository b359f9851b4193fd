"""What a worker says counts once, and only if it is the one who was asked. The worker is a scripted one."""

import pytest

from service.protocol.ids import ActorId, Epoch, FragmentId, Generation, WorkerId
from tests.support.scripted_worker import ScriptedWorker, reported, scan_of
from tests.support.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.arrangement]


def test_double_stale_and_disordered_reports_change_nothing(workerless: Service) -> None:
    """Scenario 78; I6, I7."""
    service = workerless
    with ScriptedWorker(service, WorkerId("the-worker")) as worker:
        service.run("ALTER SYSTEM SET barrier_interval_ms = 250")
        table = service.later("CREATE TABLE t (v int PRIMARY KEY)")
        worker.pass_barriers(table.done)
        service.later("CREATE MATERIALIZED VIEW m AS SELECT v FROM t", background_ddl="true")
        barrier, plan = worker.until_added()
        scan = scan_of(plan)
        job, (first, second) = int(plan.id), [actor.id for actor in scan.actors]

        def shown() -> tuple[int, int | None, str]:
            found = service.detail(job)["job"]
            return found["progress"]["rows"], found["progress"]["total"], found["state"]

        # The first word counts, whatever is said again or after it, by whom and of what.
        said = worker.collected(
            barrier, reported(scan, first, 5), reported(scan, second, 3), keys={scan.upstream.id: 100}
        )
        assert worker.post(said) == 204
        louder = worker.collected(barrier, reported(scan, first, 50, finished=True), keys={scan.upstream.id: 900})
        assert worker.post(louder) == 204
        following = worker.barrier()
        assert shown() == (8, 100, "Creating")
        for repeated in (said, louder, worker.collected(barrier, reported(scan, first, 1))):
            assert worker.post(repeated) == 204
        wrong = (
            worker.collected(following, reported(scan, first, 60), generation=Generation(barrier.generation + 1)),
            worker.collected(following, reported(scan, first, 60), epoch=Epoch(following.curr + 1)),
        )
        assert [worker.post(answer) for answer in wrong] == [410, 410]
        with ScriptedWorker(service, WorkerId("another")) as other:
            assert other.post(other.collected(following, reported(scan, first, 60))) == 410
        # Reports of actors and fragments that are not there, beside a true one; done twice is done once.
        strange = reported(scan, ActorId(second + 1000), 70, finished=True)
        elsewhere = reported(scan, second, 70, finished=True).model_copy(
            update={"fragment": FragmentId(scan.id + 1000)}
        )
        assert (
            worker.post(worker.collected(following, reported(scan, first, 60, finished=True), strange, elsewhere))
            == 204
        )
        for _ in range(2):
            barrier = worker.barrier()
            assert shown() == (63, 100, "Creating")
            assert worker.post(worker.collected(barrier, reported(scan, first, 60, finished=True))) == 204
        barrier = worker.barrier()
        assert shown() == (63, 100, "Creating")
        assert worker.post(worker.collected(barrier, reported(scan, second, 40, finished=True))) == 204
        barrier = worker.barrier()
        assert shown() == (100, 100, "Created")
        # What comes after the last word of a scan changes nothing either.
        assert worker.post(worker.collected(barrier, reported(scan, second, 7))) == 204
        worker.barrier()
        assert shown() == (100, 100, "Created")
        assert service.graph()["recoveries"] == 0
