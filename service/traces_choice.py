"""Make what makes and sends traces from the settings."""

import asyncio
import uuid
from contextlib import AsyncExitStack
from importlib import import_module

from service.domain.errors import Invalid
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.traces import Traces


def traces_of(
    stack: AsyncExitStack, settings: Settings, installation: str, instance: str, metrics: Metrics
) -> Traces | None:
    """Return what makes traces, or None where they are off. `metrics` count the spans that are lost."""
    if not settings.otel:
        return None
    # Imported here, because without traces nobody needs the packages.
    from service.telemetry.otel import Outlet  # noqa: PLC0415

    outlet = Outlet(instance, metrics.spans_dropped.inc)
    stack.push_async_callback(asyncio.to_thread, outlet.close)
    return Traces(installation, settings.otel_ratio, outlet.send, lambda: uuid.uuid4().hex)  # noqa: TID251 - an identity


def check_installed() -> None:
    """Raise Invalid if the packages that send traces are missing."""
    try:
        import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise Invalid(
            f"TIDEFILL_OTEL=on needs packages ({error.name} is missing): pip install 'tidefill[otel]'"
        ) from error
