"""No line of a log holds a token."""

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from codehub import log

TOKEN = "chub_" + "aZ09_-xy" * 5


@pytest.fixture(params=[False, True], ids=["JSON", "terminal"])
def printed(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What the logger of audit entries prints, which has the format of all others."""
    output, root, configuration = io.StringIO(), logging.getLogger(), structlog.get_config()
    output.isatty = lambda: request.param  # type: ignore[method-assign]
    handlers, level = root.handlers[:], root.level
    log.configure("api", "info", terminal=request.param, audit=output)
    yield output
    structlog.configure(**configuration)
    root.handlers[:], root.level = handlers, level
    logging.getLogger(log.AUDIT).handlers.clear()


def test_no_line_holds_a_token(printed: io.StringIO) -> None:
    logger = structlog.wrap_logger(logging.getLogger(log.AUDIT))
    try:
        raise ValueError(f"an error about {TOKEN}")
    except ValueError:
        logger.error(f"a call with {TOKEN} failed", path=f"/x?t={TOKEN}", names=[TOKEN], exc_info=True)
    text = printed.getvalue()
    assert "chub_…" in text and "an error about" in text
    assert TOKEN.removeprefix("chub_") not in text
