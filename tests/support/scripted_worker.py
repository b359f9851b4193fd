"""A worker that answers what a test tells it to, over the worker's own routes: no Spark, nothing is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import httpx

from service.protocol.api import Registration
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, ActorId, Epoch, Generation, RelationId, WorkerId
from service.protocol.mutation import Add
from service.protocol.plan import FragmentPlan, JobPlan, TableScanPlan
from service.protocol.report import ActorReport, Collected, RelationReport
from tests.support.service import WORKER_TOKEN, Service
from tests.support.waiting import until


@dataclass
class ScriptedWorker:
    """Registered while entered. It answers barriers when the test says so."""

    service: Service
    worker: WorkerId

    def __enter__(self) -> Self:
        headers = {"Authorization": f"Bearer {WORKER_TOKEN}", "Content-Type": "application/json"}
        url = f"{self.service.url}/internal/v1"
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60)
        registration = Registration(worker=self.worker, graph=DATABASE_GRAPH, pid=1, host="scripted", parallelism=2)
        assert self.http.post("/workers", content=registration.model_dump_json()).status_code == 200
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def barrier(self) -> Barrier:
        """Return the next barrier."""

        def poll() -> Barrier | None:
            answer = self.http.get(f"/workers/{self.worker}/barrier")
            return Barrier.model_validate_json(answer.content) if answer.status_code == 200 else None

        return until(poll, what="a barrier")

    def post(self, answer: Collected) -> int:
        """Send an answer; return the status."""
        return self.http.post(f"/workers/{self.worker}/answers", content=answer.model_dump_json()).status_code

    def collected(
        self,
        barrier: Barrier,
        *actors: ActorReport,
        epoch: Epoch | None = None,
        generation: Generation | None = None,
        keys: Mapping[RelationId, int] | None = None,
    ) -> Collected:
        """Return the answer to a barrier, or what a confused worker would take for it."""
        deltas = {} if keys is None else keys
        return Collected(
            worker=self.worker,
            graph=barrier.graph,
            generation=barrier.generation if generation is None else generation,
            epoch=barrier.curr if epoch is None else epoch,
            reports=actors,
            relations=tuple(RelationReport(relation=one, key_count_delta=delta) for one, delta in deltas.items()),
        )

    def pass_one(self) -> None:
        """Answer the next barrier, if there is one, with nothing to report."""
        answer = self.http.get(f"/workers/{self.worker}/barrier")
        if answer.status_code == 200:
            self.post(self.collected(Barrier.model_validate_json(answer.content)))

    def pass_barriers(self, done: Callable[[], bool]) -> None:
        """Answer barriers with nothing to report until something is done."""
        while not done():
            assert self.post(self.collected(self.barrier())) == 204

    def until_added(self) -> tuple[Barrier, JobPlan]:
        """Answer barriers until one adds a job, and return that one unanswered."""
        while True:
            barrier = self.barrier()
            if isinstance(barrier.mutation, Add) and barrier.mutation.jobs:
                return barrier, barrier.mutation.jobs[-1]
            assert self.post(self.collected(barrier)) == 204


def scan_of(plan: JobPlan) -> TableScanPlan:
    """Return the scan of a view's job."""
    (scan,) = plan.table_scans
    return scan


def reported(scan: FragmentPlan, actor: ActorId, rows: int, *, finished: bool = False) -> ActorReport:
    """Return what an actor says: how many rows it has read so far, and whether it is done."""
    return ActorReport(actor=actor, fragment=scan.id, rows=rows, finished=finished)
