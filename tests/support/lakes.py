"""Places for Delta tables in tests: a folder, and an object store that speaks S3, in this process, on loopback."""

import json
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import boto3
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer

from service.protocol.delta import ObjectStore
from workers.connectors.delta_files import storage_options

SECRET: Final = "this-is-no-text-to-show"


@dataclass(frozen=True, slots=True)
class Lake:
    """A place for tables: how a sink names it, and how a reader that knows nothing of sinks reaches it."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    storage: dict[str, str] | None = None

    def table(self, name: str = "t") -> DeltaTable:
        """Return a table in its newest version."""
        return DeltaTable(f"{self.location}/{name}", storage_options=self.storage)

    def rows(self, name: str = "t") -> list[dict[str, Any]]:
        """Return all rows of a table."""
        return pa.table(self.table(name).to_pyarrow_table()).to_pylist()


def folder(path: Path) -> Lake:
    """Return a place in the file system."""
    return Lake(str(path))


@contextmanager
def object_store() -> Generator[str]:
    """Run an object store and yield its address. It is a thread here: who holds Python's lock while waiting for it
    waits for ever.
    """
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def bucket(address: str) -> Lake:
    """Return a place in a new bucket of an object store."""
    client: Any = boto3.client(
        "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="writer", aws_secret_access_key=SECRET
    )
    name = f"lake-{token_hex(4)}"
    client.create_bucket(Bucket=name)
    options = {"s3.endpoint": address, "s3.access.key": "writer", "s3.secret.key": SECRET}
    return Lake(f"s3://{name}/lake", options, storage_options(ObjectStore(address, "us-east-1", "writer", SECRET)))


def expand(location: Path) -> None:
    """Give a table of rows a checkpoint of 2 MB that fills a quarter of a gigabyte when a program reads it."""
    DeltaTable(location).create_checkpoint()
    (checkpoint,) = location.glob("_delta_log/*.checkpoint.parquet")
    actions = pq.read_table(checkpoint)
    added = actions.filter(pc.is_valid(actions["add"])).to_pylist()[0]
    added["add"]["stats"] = json.dumps({"numRecords": 1, "minValues": {"city": "x" * 2_000}})
    many = pa.Table.from_pylist([added] * 1_000, actions.schema)
    with pq.ParquetWriter(checkpoint, actions.schema) as writer:
        writer.write_table(actions)
        for _ in range(125):
            writer.write_table(many)
    assert checkpoint.stat().st_size < 3_000_000
