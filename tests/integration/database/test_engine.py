"""Errors of the database as they appear in logs."""

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.database.engine import create_engine, create_unpooled_engine


@pytest.mark.parametrize("create", [create_engine, create_unpooled_engine])
async def test_an_error_does_not_show_the_values_of_its_statement(
    create: Callable[[str], AsyncEngine], database_url: str
) -> None:
    """The values include hashes of passwords and sessions, and texts of users."""
    engine = create(database_url)
    with pytest.raises(DBAPIError) as error:
        async with engine.connect() as conn:
            await conn.execute(text("SELECT CAST(:one AS text) || no_such_column"), {"one": "a hash"})
    assert "no_such_column" in str(error.value) and "a hash" not in str(error.value)
    await engine.dispose()
