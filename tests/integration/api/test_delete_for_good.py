"""Permanent deletion of a workspace, without an archive or a grace period."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from codehub.database.tables import audit_log, workspaces
from codehub.domain.states import Role
from tests.integration.api.conftest import Api

NAME = "my work & more"


async def delete(client: httpx.AsyncClient, workspace_id: str, **query: str) -> httpx.Response:
    return await client.delete(f"/api/v1/workspaces/{workspace_id}", params=query)


async def row_of(api: Api, workspace_id: str) -> Any:
    async with api.engine.connect() as conn:
        return (await conn.execute(select(workspaces).where(workspaces.c.id == workspace_id))).one()


async def actions(api: Api) -> list[tuple[str, str]]:
    async with api.engine.connect() as conn:
        rows = await conn.execute(select(audit_log.c.actor_name, audit_log.c.action).order_by(audit_log.c.id))
        return [(row.actor_name, row.action) for row in rows if row.action.startswith("workspace.")]


async def test_the_name_confirms_a_permanent_delete(api: Api) -> None:
    ada = await api.quick_client("ada", Role.USER)
    made = await api.workspace(ada, name=NAME)
    for confirm in ({}, {"confirm": ""}, {"confirm": made["id"]}, {"confirm": NAME.upper()}):
        refused = await delete(ada, made["id"], without_archive="true", **confirm)
        assert refused.status_code == 422 and "name of the workspace" in refused.json()["error"]["message"]
    assert (await row_of(api, made["id"])).deleted_at is None
    assert (await delete(ada, made["id"], confirm=NAME)).status_code == 204
    assert (await row_of(api, made["id"])).grace_waived_at is None, "a name alone does not make it permanent"
    assert (await delete(ada, made["id"], without_archive="true", confirm=NAME)).status_code == 204
    gone = await row_of(api, made["id"])
    assert (gone.desired_state, gone.purged_at) == ("DELETED", None)
    assert gone.grace_waived_at > gone.deleted_at, "it was in the trash before"
    [shown] = (await ada.get("/api/v1/workspaces?trash=true")).json()["items"]
    assert datetime.fromisoformat(shown["purge_at"]) == gone.grace_waived_at
    assert (await delete(ada, made["id"], without_archive="true", confirm=NAME)).status_code == 204
    assert (await actions(api)) == [("ada", "workspace.deleted"), ("ada", "workspace.deleted_for_good")]
    timeline = (await ada.get(f"/api/v1/workspaces/{made['id']}/timeline")).json()["items"]
    assert any(item["message"].startswith("Deleted for good, without an archive") for item in timeline)


async def test_an_undelete_restores_the_grace_period(api: Api) -> None:
    ada = await api.quick_client("ada", Role.USER)
    made = await api.workspace(ada, name=NAME)
    await delete(ada, made["id"], without_archive="true", confirm=NAME)
    assert (await ada.post(f"/api/v1/workspaces/{made['id']}/undelete")).status_code == 200
    assert (await row_of(api, made["id"])).grace_waived_at is None
    await delete(ada, made["id"])
    assert (await row_of(api, made["id"])).grace_waived_at is None


@pytest.mark.parametrize("in_trash", [False, True])
async def test_a_permanent_delete_needs_the_owner_or_an_admin_and_no_operation(
    api: Api, in_trash: bool
) -> None:
    ada, eve = [await api.quick_client(name, Role.USER) for name in ("ada", "eve")]
    root = await api.quick_client("root", Role.ADMIN)
    made = await api.workspace(ada, name=NAME)
    if in_trash:
        await delete(ada, made["id"])
    permanent = {"without_archive": "true", "confirm": NAME}
    await api.set(
        made["id"],
        operation="ARCHIVING",
        op_id="op",
        op_started_at=datetime.now(UTC),
        archive_op_id="ar",
    )
    busy = await delete(ada, made["id"], **permanent)
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "OPERATION_IN_PROGRESS")
    await api.set(made["id"], operation="NONE", op_id=None, op_started_at=None)
    assert (await delete(eve, made["id"], **permanent)).status_code == 403
    cross_site = {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}
    url = f"/api/v1/workspaces/{made['id']}"
    assert (await ada.delete(url, params=permanent, headers=cross_site)).status_code == 403
    assert (await row_of(api, made["id"])).grace_waived_at is None
    assert (await delete(root, made["id"], **permanent)).status_code == 204
    assert ("root", "workspace.deleted_for_good") in await actions(api)
    await api.set(made["id"], purged_at=datetime.now(UTC), phase="DELETED")
    assert (await delete(ada, made["id"], **permanent)).status_code == 404
