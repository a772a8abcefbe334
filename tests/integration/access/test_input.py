"""Input to commands, and to files, as a use of a workspace."""

from datetime import UTC, datetime

from sqlalchemy import select

from codehub.access.exec_streams import record_input
from codehub.access.services import AccessServices
from codehub.database.tables import workspaces
from tests.integration.access.test_authorization import Fixture, fixture

__all__ = ["fixture"]
EARLIER = datetime(2020, 1, 1, tzinfo=UTC)


async def test_a_use_by_a_person_counts_beside_that_of_a_program(fixture: Fixture) -> None:
    services: AccessServices = fixture.app.state.services
    _, secret = await fixture.api.token("owner", "use")
    program = await services.credential_lookup.token(secret, "")
    person = await services.credential_lookup.session(fixture.cookies["owner"], "")
    assert program is not None and person is not None
    await fixture.api.set(fixture.workspace_id, phase="RUNNING", person_access_at=EARLIER)

    async def person_access_at() -> object:
        async with services.engine.connect() as conn:
            return await conn.scalar(select(workspaces.c.person_access_at))

    await record_input(services, program, fixture.workspace_id)
    assert await person_access_at() == EARLIER
    await record_input(services, person, fixture.workspace_id)
    assert await person_access_at() != EARLIER
