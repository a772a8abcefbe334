"""Creating, reading and changing workspaces through the API."""

from datetime import UTC, datetime

import httpx

from codehub.database import home_sizes
from codehub.domain.archive_keys import archive_op_id_of
from codehub.domain.disk import HomeSize, LargeEntry, Notice
from codehub.domain.states import Role
from tests.integration.api.conftest import Api

UNKNOWN = "01arz3ndektsv4rrffq69g5fav"


async def test_a_created_workspace_is_complete(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice, name="  first  ", desired_state="RUNNING")
    assert made["name"] == "first"
    assert made["phase"] == "PENDING" and made["operation"] == "NONE" and made["desired_state"] == "RUNNING"
    assert made["owner"] == {"id": api.ids["alice"], "username": "alice"}
    assert made["url"] == f"http://localhost:8080/w/{made['id']}/"
    assert made["image_ref"] == "code-server" and made["has_archive"] is False
    assert set(made["conditions"]) == {
        "storage.volume_ready",
        "storage.archive_ready",
        "infra.container_exists",
        "infra.container_ready",
        "policy.healthy",
    }
    assert made["conditions"]["policy.healthy"]["status"] == "True"
    assert made["created_at"].endswith("Z")
    assert (await alice.get(f"/api/v1/workspaces/{made['id']}")).json() == made


async def test_the_list_has_the_true_total(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    for number in range(5):
        await api.workspace(alice, name=f"ws {number}", description="50% of_it" if number == 3 else "")
    page = (await alice.get("/api/v1/workspaces?limit=2&offset=1")).json()
    assert [item["name"] for item in page["items"]] == ["ws 3", "ws 2"] and page["total"] == 5
    found = (await alice.get("/api/v1/workspaces", params={"q": "50% OF_"})).json()
    assert [item["name"] for item in found["items"]] == ["ws 3"] and found["total"] == 1
    assert (await alice.get("/api/v1/workspaces", params={"q": "%"})).json()["total"] == 1
    assert (await alice.get("/api/v1/workspaces?phase=RUNNING")).json() == {"items": [], "total": 0}
    bob = await api.signed_in_client("bob")
    assert (await bob.get("/api/v1/workspaces")).json() == {"items": [], "total": 0}


async def test_a_missing_field_stays_unchanged(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice, description="keep me", standby_ttl_seconds=3600)
    path = f"/api/v1/workspaces/{made['id']}"
    changed = (await alice.patch(path, json={"memo": "line\nline"})).json()
    assert changed["memo"] == "line\nline" and changed["description"] == "keep me"
    assert changed["standby_ttl_seconds"] == 3600
    changed = (await alice.patch(path, json={"standby_ttl_seconds": None, "name": "two"})).json()
    assert changed["standby_ttl_seconds"] is None and changed["name"] == "two"


async def test_a_new_desired_state_during_an_operation_is_rejected(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice, desired_state="STANDBY")
    await api.set(made["id"], operation="PROVISIONING", op_id="x", op_started_at=datetime.now(UTC))
    path = f"/api/v1/workspaces/{made['id']}"
    refused = await alice.patch(path, json={"desired_state": "RUNNING", "name": "not this either"})
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "OPERATION_IN_PROGRESS"
    assert (await alice.get(path)).json()["name"] == "one"
    assert (await alice.patch(path, json={"desired_state": "STANDBY"})).status_code == 200
    assert (await alice.delete(path)).status_code == 409
    assert (await alice.post(f"{path}/cancel")).status_code == 200


async def test_a_deleted_workspace_is_in_the_trash_until_it_is_undeleted(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    assert (await alice.post(f"{path}/undelete")).json()["error"]["code"] == "INVALID_STATE"
    assert (await alice.delete(path)).status_code == 204
    for gone in (
        await alice.get(path),
        await alice.patch(path, json={}),
        await alice.delete(path),
        await alice.post(f"{path}/extend", json={"seconds": 60}),
    ):
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "WORKSPACE_NOT_FOUND"
    assert (await alice.get("/api/v1/workspaces")).json()["total"] == 0
    trash = (await alice.get("/api/v1/workspaces?trash=true")).json()
    assert trash["total"] == 1 and trash["items"][0]["purge_at"] is not None
    events = [item["event"] for item in (await alice.get(f"{path}/timeline")).json()["items"]]
    assert events == ["deleted", "created"]
    assert (await alice.post(f"{path}/undelete", json={})).json()["deleted_at"] is None
    assert (await alice.get(path)).status_code == 200


async def test_a_purged_workspace_is_not_found(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    await alice.delete(path)
    await api.set(made["id"], purged_at=datetime.now(UTC))
    assert (await alice.post(f"{path}/undelete")).status_code == 404
    assert (await alice.get("/api/v1/workspaces?trash=true")).json()["total"] == 0


async def test_an_extension_moves_the_standby_deadline(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice)
    await api.set(made["id"], phase="RUNNING", desired_state="RUNNING")
    before = (await alice.get(f"/api/v1/workspaces/{made['id']}")).json()
    assert before["standby_at"] is not None and before["archive_at"] is None
    kept = (await alice.post(f"/api/v1/workspaces/{made['id']}/extend", json={"seconds": 7200})).json()
    assert kept["keep_until"] == kept["standby_at"]
    assert seconds_between(before["standby_at"], kept["standby_at"]) == 7200
    again = (await alice.post(f"/api/v1/workspaces/{made['id']}/extend", json={"seconds": 3600})).json()
    assert seconds_between(kept["standby_at"], again["standby_at"]) == 3600, "extensions add up"


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


async def test_recover_needs_an_error_and_a_lost_home_needs_a_choice(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}/recover"
    assert (await alice.post(path)).json()["error"]["code"] == "INVALID_STATE"
    await api.set(made["id"], phase="ERROR", error_reason="DataLost", error_count=1, error_message="gone")
    shown = (await alice.get(f"/api/v1/workspaces/{made['id']}")).json()
    assert shown["ways_out"] == ["archive", "empty"]
    assert (await alice.post(path, json={})).status_code == 422
    assert (await alice.post(path, json={"from": "archive"})).status_code == 422
    assert (await alice.post(path, json={"from": "archive", "archive_op_id": UNKNOWN})).status_code == 422
    assert (await alice.post(path, json={"archive_op_id": UNKNOWN})).status_code == 422
    recovered = await alice.post(path, json={"from": "empty"})
    assert recovered.status_code == 200
    assert recovered.json()["ways_out"] == [], "none during the recovery"


async def test_a_restore_needs_a_workspace_at_rest_and_one_of_its_archives(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made, other = await api.workspace(alice), await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    older, newer = [archive_op_id_of(await api.add_archive(made["id"], 1)) for _ in range(2)]
    foreign = archive_op_id_of(await api.add_archive(other["id"], 1))
    removed = archive_op_id_of(await api.add_archive(made["id"], 1, removed_at=datetime.now(UTC)))

    async def restore(archive_op_id: str) -> httpx.Response:
        return await alice.post(f"{path}/restore", json={"archive_op_id": archive_op_id})

    await api.set(made["id"], phase="RUNNING", desired_state="RUNNING")
    refused = await restore(older)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "INVALID_STATE")
    assert "Stop it first" in refused.json()["error"]["message"]
    await api.set(made["id"], phase="STANDBY", desired_state="STANDBY")
    for unknown in (foreign, removed, UNKNOWN):
        assert (await restore(unknown)).status_code == 422
    assert (await restore("no id")).status_code == 422

    accepted = await restore(older)
    assert (accepted.status_code, accepted.json()["archive_to_restore"]) == (200, older)
    assert accepted.json()["desired_state"] == "STANDBY"
    assert (await restore(older)).status_code == 200, "asking for what is already requested"
    assert (await restore(newer)).status_code == 409
    assert (await alice.patch(path, json={"desired_state": "RUNNING"})).status_code == 409
    assert (await alice.post(f"{path}/cancel")).status_code == 200
    shown = (await alice.get(path)).json()
    assert shown["archive_to_restore"] is None


async def test_admins_stop_and_delete_but_neither_start_nor_edit(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    root = await api.signed_in_client("root", Role.ADMIN)
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    await api.set(made["id"], phase="RUNNING", desired_state="RUNNING")
    for body in ({"desired_state": "RUNNING"}, {"name": "mine"}, {"desired_state": "STANDBY", "memo": ""}):
        assert (await root.patch(path, json=body)).status_code == 403, body
    assert (await root.patch(path, json={"desired_state": "STANDBY"})).json()["desired_state"] == "STANDBY"
    await api.set(made["id"], phase="ARCHIVED", desired_state="ARCHIVED")
    assert (await root.patch(path, json={"desired_state": "STANDBY"})).status_code == 403
    assert (await root.delete(path)).status_code == 204
    assert (await root.post(f"{path}/undelete")).status_code == 200


async def test_the_home_is_shown_while_it_exists(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice)
    assert made["home"] is None
    path, now = f"/api/v1/workspaces/{made['id']}", datetime.now(UTC)
    size = HomeSize(100, 3, largest=(LargeEntry("data", 90),), quota_bytes=100)
    async with api.engine.begin() as conn:
        await home_sizes.record_sizes(conn, {made["id"]: size}, now)
        await home_sizes.put_notice(conn, Notice(made["id"], "Warning: the disk."), warned_at=now)
    assert (await alice.get(path)).json()["home"] is None, "it belonged to a home that is gone"
    conditions = made["conditions"] | {
        "storage.volume_ready": made["conditions"]["storage.volume_ready"] | {"status": "True"}
    }
    await api.set(made["id"], conditions=conditions)
    shown = (await alice.get(path)).json()["home"]
    assert shown.pop("measured_at") is not None
    assert shown == {
        "bytes": 100,
        "entries": 3,
        "complete": True,
        "quota_bytes": 100,
        "is_full": True,
        "largest": [{"name": "data", "bytes": 90}],
        "notice": "Warning: the disk.",
    }
    assert (await alice.patch(path, json={"memo": "x"})).json()["home"]["bytes"] == 100
    assert (await alice.get("/api/v1/workspaces")).json()["items"][0]["home"]["bytes"] == 100


async def test_a_workspace_has_the_time_and_the_size_of_its_current_archive(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    made = await api.workspace(alice)
    path = f"/api/v1/workspaces/{made['id']}"
    await api.add_archive(made["id"], 1)
    assert (await alice.get(path)).json()["archive"] is None
    await api.set(made["id"], archive_key=await api.add_archive(made["id"], 168_000))
    archive = (await alice.get(path)).json()["archive"]
    assert archive["bytes"] == 168_000
    assert datetime.fromisoformat(archive["created_at"]) <= datetime.now(UTC)
