"""Wire a worker. This is the only module that knows every concrete class."""

import gc
import os
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import structlog

from service.protocol.api import Registration
from service.protocol.barrier import Barrier
from service.protocol.cdc import SourceConnection
from service.protocol.ids import DATABASE_GRAPH, Generation, GraphId, SourceId, WorkerId
from service.protocol.report import Failed, JobFailure
from service.protocol.request import CheckPlace, DescribeTable, Rejected, Request, Response, Select, Verify
from workers.agent import Agent
from workers.cdc.connecting import AwayError
from workers.connectors.in_place import PlacedStore
from workers.graph import SCANS_AT_ONCE, GraphExecutor
from workers.meta_client import MetaClient, ServiceAwayError
from workers.rpc.answer import answer
from workers.rpc.apart import Apart
from workers.rpc.warm_up import warm
from workers.runners.failure import BESIDE, EXHAUSTED, JobFailedError, explain
from workers.runners.kinds import joins_of
from workers.runners.own_turns import OwnTurns
from workers.runners.port import Stores
from workers.settings import Settings, read_settings
from workers.spark.gateway import JAVA_OPTIONS
from workers.spark.session import CONF, OWN_AT_ONCE, Session, start
from workers.state_store.connections import KEPT_BY_WORKER, keep
from workers.state_store.dml import DmlStore
from workers.state_store.port import StatementBrokeError, TooSlowError
from workers.state_store.postgres import PostgresStore
from workers.state_store.upkeep import PostgresUpkeep

log = structlog.get_logger("worker")

_OUTSIDE_GENERATIONS = Generation(0)
"""The generation of sessions that answer requests. They only read a pinned epoch, so no recovery has to fence them."""
QUERY_MEMORY = "768m"
"""The heap of a process that computes queries."""
_LONGEST = 10_000
"""The characters of a reason. A longer one quotes data, and the answer has to arrive."""
_JVM_SECONDS = 0.5
"""How long to wait after an error for the JVM to exit. A dying JVM closes its connections a moment before it exits."""


def main() -> None:
    """Run one worker until it is stopped by a signal, by the service or by the end of its JVM."""
    settings = read_settings()
    _configure_log(settings)
    worker = WorkerId(settings.worker_id or str(uuid.uuid4()))  # noqa: TID251 - identities are made in bootstrap
    keep(KEPT_BY_WORKER)
    session = start(settings.spark_master, settings.spark_conf)
    warm(session.spark, session.parallelism)
    agent = _agent(settings, worker, session)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, partial(_stop, agent, settings.leave_seconds))
    threading.Thread(target=_end_with, args=(session, agent), daemon=True).start()
    # Epochs that plan anew collect garbage (`workers.spark.frames.release_plans`). These objects stay.
    gc.collect()
    gc.freeze()
    log.info("worker.started", worker=worker, parallelism=session.parallelism)
    agent.run()
    lost = session.lost(0)
    log.info("worker.stopped", worker=worker)
    session.stop()
    if lost:
        sys.exit("Spark ended")


def _stop(agent: Agent, leave_seconds: float, number: int, _frame: object) -> None:
    """Leave at SIGTERM. Stop at once at SIGINT, or at the second signal."""
    if number == signal.SIGTERM and leave_seconds > 0:
        signal.signal(signal.SIGTERM, partial(_stop, agent, 0.0))
        threading.Thread(target=agent.leave, args=(leave_seconds,), daemon=True).start()
    else:
        agent.stop.set()


def _end_with(session: Session, agent: Agent) -> None:
    """Stop the agent when the JVM ends: the worker cannot run anything any more and has to be replaced."""
    session.ended.wait()
    if not agent.stop.is_set():
        log.error("worker.jvm_ended")
        agent.stop.set()


def _agent(settings: Settings, worker: WorkerId, session: Session) -> Agent:
    url = settings.state_store_url.get_secret_value()
    client = MetaClient.of(settings.service_url, settings.worker_token.get_secret_value())

    def connect(barrier: Barrier) -> Stores:
        assert agent.registered is not None
        dml_url = agent.registered.dml_url
        limit = barrier.scans.timeout_ms
        store = PostgresStore(url, barrier.graph, barrier.generation, stage_timeout_ms=limit)
        return Stores(PlacedStore(store), DmlStore(dml_url, barrier.graph, barrier.generation), store, limit)

    apart = Apart(partial(_computing_queries, settings, max(session.parallelism // 2, 1)))

    def respond(request: Request) -> Response | None:
        if isinstance(request, Select | Verify) and is_computed_apart(request, local=session.local):
            return apart.answer(request)
        if isinstance(request, DescribeTable | CheckPlace):
            apart.prepare()
        response = _answers(session, url, client, session.parallelism)(request)
        return None if isinstance(response, Rejected) and session.lost(_JVM_SECONDS) else response

    def failed(barrier: Barrier, error: Exception) -> Failed | None:
        lost = session.lost(_JVM_SECONDS)
        # A killed JVM gives no reason to blame a job: the worker ends without an answer and is replaced.
        return None if lost and not session.out_of_memory else _failure(worker, barrier, error, exhausted=lost)

    agent = Agent(
        Registration(
            worker=worker,
            graph=GraphId(settings.graph),
            pid=os.getpid(),
            host=socket.gethostname(),
            parallelism=session.parallelism,
        ),
        client,
        partial(_executor, worker, session, connect, url, _turns(), client),
        respond,
        failed,
    )
    return agent


def is_computed_apart(question: Select | Verify, *, local: bool) -> bool:
    """Whether a process of its own computes this, because it could take all memory of the worker's JVM (I13).

    A cluster's executors verify large views: their memory is not the worker's.
    """
    return isinstance(question, Select) or (local and question.gathers)


def _answers(session: Session, url: str, client: MetaClient, slots: int) -> Callable[[Request], Response]:
    return partial(answer, session.spark, partial(_reader, url), client.secret, client.is_wanted, parallelism=slots)


def _reader(url: str, question: Verify | Select) -> PlacedStore:
    return PlacedStore(PostgresStore(url, question.graph, _OUTSIDE_GENERATIONS, question.id))


def _computing_queries(settings: Settings, slots: int) -> Callable[[Select | Verify], Response]:
    """Start Spark in a process that computes queries, on this machine: their memory is bounded, and theirs alone."""
    _configure_log(settings)
    url, memory = settings.state_store_url.get_secret_value(), {"spark.driver.memory": QUERY_MEMORY}
    client = MetaClient.of(settings.service_url, settings.worker_token.get_secret_value())
    java = settings.spark_conf.get(JAVA_OPTIONS, CONF[JAVA_OPTIONS])
    options = {JAVA_OPTIONS: f"{java} -XX:+ExitOnOutOfMemoryError"}
    session = start(f"local[{slots}]", {**settings.spark_conf, **memory, **options})
    # A first query that takes its time to begin would look like one that nothing interrupts.
    warm(session.spark, slots)

    def computed(question: Select | Verify) -> Response:
        response = _answers(session, url, client, slots)(question)
        if isinstance(response, Rejected) and session.lost(_JVM_SECONDS):
            os._exit(1)
        return response

    return computed


def _turns() -> tuple[threading.Lock, OwnTurns, OwnTurns]:
    return threading.Lock(), OwnTurns(), OwnTurns(total=OWN_AT_ONCE)


def _executor(
    worker: WorkerId,
    session: Session,
    connect: Callable[[Barrier], Stores],
    url: str,
    turns: tuple[threading.Lock, OwnTurns, OwnTurns],
    client: MetaClient,
    graph: GraphId,
) -> GraphExecutor:
    """Make the executor of a graph. Snapshot jobs' graphs share one mutex for their Spark jobs, and the turns of those
    that are created, at all and in Spark; the database graph has none (I10).
    """
    joins = joins_of(session.spark, partial(_connection_of, client), client.secret)
    executor = GraphExecutor(worker, session.spark, connect, joins, PostgresUpkeep(url), pool=f"graph-{graph}")
    if graph == DATABASE_GRAPH:
        executor.threads = ThreadPoolExecutor(SCANS_AT_ONCE, "scan")
    else:
        executor.turn, executor.own_turns, executor.spark_turns = turns
    return executor


def _connection_of(client: MetaClient, source: SourceId) -> SourceConnection:
    """Ask the service for a source's connection data. Raises AwayError when the service is away: its sources then are,
    too.
    """
    try:
        return client.source(source)
    except ServiceAwayError as error:
        raise AwayError(f"the service does not say how to reach it: {type(error).__name__}") from error


def _failure(worker: WorkerId, barrier: Barrier, error: Exception, *, exhausted: bool = False) -> Failed | None:
    """Return the failure to report. When the JVM was `exhausted` (out of memory), report it only if a job was computing
    then, or several beside each other; otherwise return None.
    """
    blamed = error if isinstance(error, JobFailedError) else None
    broke = error if isinstance(error, StatementBrokeError) else None
    if exhausted and (blamed is None or not (blamed.computing or blamed.beside)):
        return None
    beside = blamed.beside if blamed is not None and (exhausted or blamed.exhausted) else ()
    deterministic, reason = (blamed.deterministic, blamed.reason) if blamed else explain(error)
    if exhausted and blamed is not None:
        reason = f"{blamed.where}{BESIDE if beside else ''}: {EXHAUSTED}"
    return Failed(
        worker=worker,
        graph=barrier.graph,
        generation=barrier.generation,
        epoch=barrier.curr,
        error=reason[:_LONGEST],
        job=None if blamed is None else blamed.job,
        statement=None if broke is None else broke.statement,
        deterministic=deterministic and not exhausted,
        exhausted=(exhausted and not beside) or (blamed is not None and blamed.suspect),
        beside=beside,
        too_slow=(blamed is not None and blamed.too_slow) or (broke is not None and broke.too_slow),
        others=() if blamed is None else tuple(_others(blamed, barrier)),
    )


def _others(blamed: JobFailedError, barrier: Barrier) -> Iterator[JobFailure]:
    """Yield the further jobs that failed, and those that would when the epoch is computed again."""
    told = {blamed.job}
    for one in blamed.others:
        told.add(one.job)
        yield JobFailure(job=one.job, error=one.reason, too_slow=one.too_slow)
    for job in sorted(set(blamed.exceeding) - told):
        yield JobFailure(job=job, error=str(TooSlowError(barrier.scans.timeout_ms, together=True)), too_slow=True)


def _configure_log(settings: Settings) -> None:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    threading.current_thread().name = "worker"
