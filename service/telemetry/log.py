"""Structured logs: one event per transition, named like the domain event, with its facts as fields."""

import logging
import sys
from typing import Literal

import structlog
from structlog.contextvars import bind_contextvars as bind
from structlog.contextvars import bound_contextvars as bound

__all__ = ["bind", "bound", "configure", "logger"]


def logger(area: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of an area such as `barriers`."""
    return structlog.get_logger(area=area)


def configure(*, level: str, form: Literal["console", "json"]) -> None:
    """Set up logging to standard error, once per process."""
    # sqlglot's warnings quote statements, which may contain secrets.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    # Their messages name URLs and headers.
    for library in ("httpx", "httpcore"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
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
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
