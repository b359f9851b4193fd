"""S11: sources and probes tell nobody what listens where. Other hosts are addresses of 127.0.0.0/8."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from service.domain.errors import Invalid, Unavailable, Unreachable
from service.domain.probes import parse_probe_url
from service.domain.reach import ANY, HostRules, parse_host_rules
from service.operations.sources import checks
from service.ports.health import ProbeFailed
from service.ports.sources import Address
from service.probes.http import HttpxProbe
from service.sources.servers import PostgresExternalServers
from service.sources.tables import PostgresExternalTables
from tests.support.external import External, external_database
from tests.support.http import Absent, StillClock, world_of
from tests.support.service import free_port

SERVERS, TABLES = PostgresExternalServers(), PostgresExternalTables()
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Listening:
    """A server that is no Postgres, at another host."""

    port: int
    said: bytes
    visits: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        await reader.read(8)
        writer.write(self.said)
        writer.close()
        await writer.wait_closed()


@pytest.fixture
def external(postgres_url: str) -> Iterator[External]:
    with external_database(postgres_url) as one:
        yield one


@pytest.fixture(params=[HTTP, b"", b"\x00" * 64], ids=["http", "closes", "garbage"])
async def other(request: pytest.FixtureRequest) -> AsyncGenerator[Listening]:
    listening = Listening(0, request.param)
    server = await asyncio.start_server(listening.serve, "127.0.0.2", 0)
    listening.port = server.sockets[0].getsockname()[1]
    async with server:
        yield listening


def at(host: str, port: int, rules: HostRules = ANY) -> Address:
    return Address("pg", "there", f"host={host} port={port} user=u password=p dbname=d connect_timeout=5", rules)


async def told(host: str, port: int) -> tuple[str, float]:
    with pytest.raises(Unreachable) as error:
        await SERVERS.server(at(host, port))
    return error.value.message, error.value.within_seconds


async def test_s11_closed_ports_and_other_servers_are_told_alike(other: Listening) -> None:
    assert await told("127.0.0.2", other.port) == await told("127.0.0.2", free_port())
    assert other.visits


async def test_s11_a_listed_host_is_told_in_full(other: Listening) -> None:
    with pytest.raises(Unavailable, match="Connection refused") as error:
        await SERVERS.server(at("127.0.0.2", free_port(), parse_host_rules(["127.0.0.2"])))
    assert not isinstance(error.value, Unreachable)


async def test_u9_a_caller_on_this_machine_is_told_the_cause(other: Listening) -> None:
    rules = replace(ANY, told=True)
    for host, port, said in (
        ("127.0.0.2", free_port(), "Connection refused"),
        ("no-such-host.invalid", 5432, "no name server knows the host"),
        ("127.0.0.2", other.port, "there cannot be reached: "),
    ):
        with pytest.raises(Unavailable, match=said) as error:
            await SERVERS.server(at(host, port, rules))
        assert not isinstance(error.value, Unreachable)
    with pytest.raises(Invalid, match="may not be reached"):
        await SERVERS.server(at("0.0.0.0", free_port(), rules))


@pytest.mark.parametrize("host", ["127.0.0.2", "127.2", "2130706434", "0x7f000002", "::ffff:127.0.0.2"])
async def test_s11_an_unlisted_host_is_not_connected_to_however_it_is_written(host: str, other: Listening) -> None:
    with pytest.raises(Invalid, match="TIDEFILL_SOURCE_HOSTS"):
        await SERVERS.server(at(host, other.port, parse_host_rules(["127.0.0.3"])))
    probe = HttpxProbe(hosts=parse_host_rules(["127.0.0.3"]))
    written = f"[{host}]" if ":" in host else host
    url = parse_probe_url(f"http://{written}:{other.port}/", pointer="p")
    with pytest.raises(ProbeFailed, match="TIDEFILL_SOURCE_HOSTS"):
        await probe.status(url, timeout_ms=2_000)
    assert other.visits == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::ffff:0.0.0.0", "0"])
async def test_s11_a_forbidden_address_is_refused_before_anything_is_sent(host: str) -> None:
    with pytest.raises(Invalid, match="may not be reached"):
        await SERVERS.server(at(host, free_port()))


async def test_s11_the_address_that_was_judged_is_the_one_that_is_connected_to(
    external: External, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers differently the second time leads nowhere else. Forbidden addresses stand in the unit
    tests only: no test is to connect to one when the rule is broken.
    """
    answers = iter(["127.0.0.1", "127.0.0.3"])
    loop = asyncio.get_running_loop()

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "db.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    given = external.address
    host = str(external.options["hostname"])
    conninfo = given.conninfo.replace(f"host={host}", "host=db.example")
    changing = replace(given, conninfo=conninfo, hosts=parse_host_rules(["127.0.0.1"]))
    assert (await SERVERS.server(changing)).version_number >= 140000
    with pytest.raises(Invalid, match="may not be reached"):
        await SERVERS.server(changing)


async def test_s11_a_check_fails_after_one_and_the_same_time(other: Listening) -> None:
    took: list[float] = []
    for port in (other.port, free_port()):
        clock = StillClock()
        world = world_of(Absent(), servers=SERVERS, catalog=TABLES, clock=clock)  # pyright: ignore[reportArgumentType] - not asked
        world.signals.clock = clock  # pyright: ignore[reportAttributeAccessIssue] - PatientSignals
        options = {"connector": "postgres-cdc", "hostname": "127.0.0.2", "port": str(port)}
        items = await checks.check(world, {**options, "username": "u", "database.name": "d"}, "p", [])
        assert [(item.item, item.ok) for item in items] == [("reachable", False)]
        took.append(clock.seconds)
    assert took == [6.0, 6.0]


async def test_s11_probes_tell_closed_ports_and_other_servers_alike(other: Listening) -> None:
    words: set[str] = set()
    for port in (other.port, free_port()):
        url = parse_probe_url(f"http://127.0.0.2:{port}/", pointer="p")
        try:
            await HttpxProbe().status(url, timeout_ms=5_000)
        except ProbeFailed as error:
            words.add(str(error).replace(str(port), "PORT"))
    assert words == {"http://127.0.0.2:PORT/ could not be reached as a web server"}


async def test_s11_a_probe_goes_by_the_name_that_its_url_has() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        url = parse_probe_url(f"http://localhost:{port}/x", pointer="p")
        hosts = parse_host_rules(["127.0.0.1"])
        assert await HttpxProbe(hosts=hosts).status(url, timeout_ms=5_000) == 200
    assert f"host: localhost:{port}\r\n".encode() in heads[0].lower()
