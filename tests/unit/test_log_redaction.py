"""No line of a log holds a token."""

import io
import logging

import pytest
import structlog

from codehub import log

TOKEN = "chub_" + "aZ09_-xy" * 5


@pytest.fixture(params=[False, True], ids=["JSON", "terminal"])
def printed(request: pytest.FixtureRequest) -> io.StringIO:
    """What the logger of audit entries prints, which has the format of all others."""
    output = io.StringIO()
    output.isatty = lambda: request.param  # type: ignore[method-assign]
    log.configure("api", "info", terminal=request.param, audit=output)
    return output


def test_no_line_holds_a_token(printed: io.StringIO) -> None:
    logger = structlog.wrap_logger(logging.getLogger(log.AUDIT))
    try:
        raise ValueError(f"an error about {TOKEN}")
    except ValueError:
        logger.error(f"a call with {TOKEN} failed", path=f"/x?t={TOKEN}", names=[TOKEN], exc_info=True)
    text = printed.getvalue()
    assert "chub_…" in text and "an error about" in text
    assert TOKEN.removeprefix("chub_") not in text
