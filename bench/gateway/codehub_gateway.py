"""CodeHub's gateway as in production. The containers of its two workspaces are the upstreams."""

import os
from collections.abc import Mapping
from typing import Final

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from codehub.clock import utc_now
from codehub.database import accounts, installation
from codehub.database.engine import create_engine
from codehub.database.sessions import open_session
from codehub.database.tables import workspaces
from codehub.domain.audit import CLI
from codehub.domain.states import DesiredState, Phase
from codehub.ulids import new_id
from tests.services import Services, run

HTTP_WORKSPACE: Final = f"{'http':0>26}"
WS_WORKSPACE: Final = f"{'ws':0>26}"
PORT: Final = 9305


def prepare(services: Services, upstreams: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the gateway's environment, and the cookie of the signed-in owner of the workspaces."""
    database_url = run(services.migrated_database())
    session_id = run(_populate(database_url, upstreams))
    environment = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": database_url,
        "REDIS_URL": services.redis.url,
        "CODEHUB_DATA_DIR": str(services.data_dir),
        "HOST": "127.0.0.1",
        "PORT": str(PORT),
        "PUBLIC_BASE_URL": f"http://127.0.0.1:{PORT}",
        "APPS_DOMAIN": "",
        "GATEWAY_WORKERS": "1",
    }
    return environment, f"session={session_id}"


async def _populate(database_url: str, upstreams: Mapping[str, str]) -> str:
    engine = create_engine(database_url)
    try:
        await installation.load_or_create_installation(engine, new_id(), 2_000_000)
        owner = await accounts.create_account(engine, "bench", "bench-password", actor=CLI, now=utc_now())
        async with engine.begin() as conn:
            for workspace_id, upstream in upstreams.items():
                await _insert_running(conn, owner.id, workspace_id, upstream)
            return await open_session(conn, owner.id, utc_now())
    finally:
        await engine.dispose()


async def _insert_running(conn: AsyncConnection, owner_id: str, workspace_id: str, upstream: str) -> None:
    now = utc_now()
    await conn.execute(
        insert(workspaces).values(
            id=workspace_id, owner_id=owner_id, name=workspace_id, image_ref="bench",
            instance_backend="process", storage_backend="local-dir",
            home_store_key=f"users/{owner_id}/workspaces/{workspace_id}/home",
            desired_state=DesiredState.RUNNING, phase=Phase.RUNNING, phase_changed_at=now, conditions={},
            upstream=upstream, last_access_at=now, created_at=now, updated_at=now,
        )
    )  # fmt: skip
