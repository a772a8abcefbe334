"""Structured logs: one line per event, as JSON, or with colours on a terminal."""

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

# structlog loads Rich if it is installed, for tracebacks that CodeHub does not show: 5 MB and 60 ms
# in every process. An entry of None makes the import fail, which structlog expects. Each process
# therefore imports this module before it imports structlog.
_hides_rich = sys.modules.setdefault("rich", None) is None  # type: ignore[arg-type]
import structlog  # noqa: E402

if _hides_rich:
    del sys.modules["rich"]

from codehub.domain.token_format import without_tokens  # noqa: E402

AUDIT = "codehub.database.audit"
"""Name of the logger of audit entries."""

_component = ""
_configured: tuple[object, ...] = ()


def configure(
    component: str, level: str = "info", *, terminal: bool | None = None, audit: TextIO | None = None
) -> None:
    """Send every log line of this process, marked with its component, to standard error.

    Audit entries go to `audit`, if it is given, whatever the level. A forked process that inherited
    the same configuration only sets its component, so that the memory remains shared.
    """
    global _component, _configured
    _component = component
    audit = audit or sys.stderr
    terminal = sys.stderr.isatty() if terminal is None else terminal
    audit_terminal = terminal and audit.isatty()
    if _configured == (level, terminal, sys.stderr, audit):
        return
    _configured = (level, terminal, sys.stderr, audit)
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        lambda _logger, _method, event: {"component": _component, **event},
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not terminal:
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    _write_to(logging.getLogger(), sys.stderr, level.upper(), _formatter(shared, terminal))
    _write_to(logging.getLogger(AUDIT), audit, "INFO", _formatter(shared, audit_terminal))
    logging.getLogger(AUDIT).propagate = False
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _formatter(shared: Sequence[structlog.types.Processor], terminal: bool) -> logging.Formatter:
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    )

    def render(logger: structlog.types.WrappedLogger, method: str, event: structlog.types.EventDict) -> str:
        return without_tokens(str(renderer(logger, method, event)))

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
    )


def _write_to(logger: logging.Logger, stream: TextIO, level: str, formatter: logging.Formatter) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger.handlers[:] = [handler]
    logger.setLevel(level)
