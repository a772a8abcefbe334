"""Structured logs: one line an event, JSON for machines and colours for a terminal."""

import logging
import sys

# structlog loads Rich where it is installed, for tracebacks that CodeHub does not show: 5 MB and 60 ms in
# every process. An entry of None makes the import fail, which structlog expects.
_hides_rich = sys.modules.setdefault("rich", None) is None  # type: ignore[arg-type]
import structlog  # noqa: E402

if _hides_rich:
    del sys.modules["rich"]


_component = ""
_configured: tuple[object, ...] = ()


def configure(component: str, level: str = "info", *, terminal: bool | None = None) -> None:
    """Send every log line of this process to standard error, marked with its component.

    A process that inherited the same configuration only takes its own name: what is not done again
    leaves the memory shared.
    """
    global _component, _configured
    _component = component
    terminal = sys.stderr.isatty() if terminal is None else terminal
    if _configured == (level, terminal, sys.stderr):
        return
    _configured = (level, terminal, sys.stderr)
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        lambda _logger, _method, event: {"component": _component, **event},
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if terminal:
        renderer: structlog.types.Processor = structlog.dev.ConsoleRenderer(
            exception_formatter=structlog.dev.plain_traceback
        )
    else:
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)


def get(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger
