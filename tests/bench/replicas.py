"""Several services on one database: barriers through one, two and three of them, and how long a change of leader takes.

All but the first service launch no worker. The first one is never killed: it runs Postgres and the worker.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from tests.bench.clock import monotonic
from tests.bench.figures import Figure, Section, Target, of_samples, percentile
from tests.support.persistent_client import PersistentClient
from tests.support.service import Service
from tests.support.waiting import until

BARRIERS: Final = 40
CHANGES: Final = 10
GRACEFUL: Final = Target("<", 1.0)
CRASH: Final = Target("<", 9.0)


def replicas(service: Service) -> list[Section]:
    """Measure with one service, then with two and three."""
    environment = {"TIDEFILL_DATABASE_URL": service.database_url(), "TIDEFILL_LAUNCHER": "none"}
    barriers = [_barriers("through one service", service)]
    with ExitStack() as stack:
        others: list[Service] = []
        for number, words in enumerate(("the follower of two", "a follower of three")):
            other = Service(service.data_dir.with_name(f"replica-{number}"), environment)
            stack.callback(other.clear)
            others.append(other.start())
            barriers.append(_barriers(f"through {words}", other))
        graceful = [_graceful((service, *others)) for _ in range(CHANGES)]
        crashes = [_crash(service, others) for _ in range(CHANGES)]
        _lead(service, (service, *others))
    ends = (
        *_figures("order to resign, to the next leader", [one for one, _ in graceful], GRACEFUL),
        *_figures("order to resign, to the next barrier", [one for _, one in graceful], None),
        *_figures("SIGKILL, to the next barrier", crashes, CRASH),
    )
    return [Section("Barriers through replicas, forced", tuple(barriers)), Section("Change of leader", ends)]


def _figures(name: str, seconds: Sequence[float], target: Target | None) -> tuple[Figure, Figure]:
    return of_samples(name, seconds, "s"), Figure(f"{name}: p99", percentile(seconds, 0.99), "s", target)


def _barriers(name: str, service: Service) -> Figure:
    """Force barriers one after the other."""
    taken: list[float] = []
    for _ in range(BARRIERS):
        began = monotonic()
        service.flush()
        taken.append(monotonic() - began)
    return of_samples(name, taken, "s", note=f"p99 {percentile(taken, 0.99):.3f} s")


def _graceful(services: Sequence[Service]) -> tuple[float, float]:
    """Let the leader resign; return the seconds until another one leads, and until a barrier after that."""
    leader = _leader(services)
    others = [one for one in services if one is not leader]
    began = monotonic()
    leader.post("/v1/leader/resign")
    led = until(lambda: monotonic() if any(one.leads() for one in others) else None, what="another leader")
    others[0].flush()
    return led - began, monotonic() - began


def _crash(first: Service, others: Sequence[Service]) -> float:
    """Kill a leader other than the first service; return the seconds until the first one has forced a barrier."""
    while (leader := _leader((first, *others))) is first:
        _graceful((first, *others))
    leader.kill()
    began = monotonic()
    PersistentClient(first, f"after-{leader.port}-{began}").call("POST", "/v1/barriers")
    seconds = monotonic() - began
    leader.start(ready=False)
    until(leader.is_alive, what=leader.log_tail)
    return seconds


def _leader(services: Sequence[Service]) -> Service:
    return until(lambda: next((one for one in services if one.leads()), None), what="a leader")


def _lead(service: Service, services: Sequence[Service]) -> None:
    """Have `service` lead again."""
    while _leader(services) is not service:
        _graceful(services)
