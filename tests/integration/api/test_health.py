"""Health, readiness, metrics, OpenAPI and the dashboard's files."""

from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, text, update

from codehub.api import dashboard
from codehub.api.app import create_app
from codehub.domain.claims import Location
from codehub.domain.states import Role
from codehub.settings import Settings
from codehub.store import installation
from codehub.store.tables import leadership
from tests.integration.api.conftest import Api


async def _claim(api: Api) -> None:
    await installation.ensure(api.engine, "here", 2_000_000)
    for location in Location:
        await installation.PostgresClaims(api.engine).record(location)


async def _lead(api: Api, age: str) -> None:
    async with api.engine.begin() as conn:
        heartbeat = func.now() - text(f"interval '{age}'")
        await conn.execute(update(leadership).values(holder="host:1", epoch=1, heartbeat_at=heartbeat))


async def test_ready_names_what_is_wrong_and_what_to_do(api: Api) -> None:
    client = await api.client()
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    answer = await client.get("/readyz")
    assert answer.status_code == 503 and answer.json()["ready"] is False
    checks = answer.json()["checks"]
    assert [name for name, check in checks.items() if not check["ok"]] == ["coordinator", "storage"]
    assert "codehub serve coordinator" in checks["coordinator"]["message"]
    assert "Not claimed yet: archives and volumes." in checks["storage"]["message"]
    await _lead(api, "0 seconds")
    assert (await client.get("/readyz")).status_code == 503
    await _claim(api)
    assert (await client.get("/readyz")).json()["ready"] is True
    await _lead(api, "31 seconds")
    assert (await client.get("/readyz")).status_code == 503


@pytest.mark.parametrize(
    ("version", "advice"), [("0001", "run `codehub migrate`"), ("future", "install that version")]
)
async def test_a_database_of_another_version_is_not_ready(api: Api, version: str, advice: str) -> None:
    async with api.engine.begin() as conn:
        await conn.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    checks = (await (await api.client()).get("/readyz")).json()["checks"]
    assert not checks["schema"]["ok"] and advice in checks["schema"]["message"]


async def test_everything_down_is_said_and_not_a_500(settings: Settings, tmp_path: Path) -> None:
    nowhere = settings.model_copy(
        update={
            "database_url": f"postgresql://x:y@/codehub?host={tmp_path}",
            "redis_url": f"unix://{tmp_path}/redis.sock",
        }
    )
    app = create_app(nowhere)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            assert (await client.get("/healthz")).status_code == 200
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert not any(check["ok"] for check in answer.json()["checks"].values())
            body = {"username": "a", "password": "b"}
            refused = await client.post("/api/v1/login", json=body)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "UNAVAILABLE"


async def test_metrics_count_by_route_and_name_nobody(api: Api) -> None:
    alice = await api.person_quickly("alice", Role.USER)
    made = await api.workspace(alice)
    await alice.get(f"/api/v1/workspaces/{made['id']}")
    page = (await alice.get("/metrics")).text
    assert 'route="/api/v1/workspaces/{workspace_id}"' in page
    assert made["id"] not in page and "alice" not in page


async def test_openapi_is_served_and_its_viewers_are_not(api: Api) -> None:
    client = await api.client()
    document = (await client.get("/api/v1/openapi.json")).json()
    assert "/api/v1/workspaces/{workspace_id}/recover" in document["paths"]
    assert "HTTPValidationError" not in str(document)


async def test_the_overview(api: Api) -> None:
    root, alice = await api.person_quickly("root", Role.ADMIN), await api.person_quickly("alice", Role.USER)
    await api.workspace(alice, desired_state="RUNNING")
    broken = await api.workspace(alice)
    await api.set(broken["id"], phase="ERROR", error_reason="Timeout", error_count=1, error_message="slow")
    await _lead(api, "0 seconds")
    seen = (await root.get("/api/v1/admin/overview")).json()
    assert seen["phases"]["PENDING"] == 1 and seen["phases"]["ERROR"] == 1 and seen["phases"]["RUNNING"] == 0
    assert seen["running"] == 1 and seen["users"] == 2 and seen["leader"]["holder"] == "host:1"
    assert [item["id"] for item in seen["errors"]] == [broken["id"]]


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "dist"
    (made / "assets").mkdir(parents=True)
    (made / "index.html").write_text("<!doctype html><title>CodeHub</title>")
    (made / "assets" / "index-1a2b.js").write_text("1")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(dashboard, "find_dist", lambda: made)
    return made


async def test_the_dashboard_is_served_with_its_headers(dist: Path, api: Api) -> None:
    client = await api.client()
    odd = ("/%00", "/..%2fsecret", "/assets", f"/{'a' * 5000}", "/a" * 3000)
    for path in ("/", "/workspaces/x", "/login?next=/w/1/", "/index.html", *odd):
        page = await client.get(path)
        assert page.status_code == 200 and "<title>CodeHub" in page.text, path
        assert page.headers["cache-control"] == "no-cache"
    script = await client.get("/assets/index-1a2b.js")
    assert "immutable" in script.headers["cache-control"] and script.text == "1"
    for name in ("index-old.js", "a" * 300):
        missing = await client.get(f"/assets/{name}")
        assert missing.status_code == 404 and missing.headers["cache-control"] == "no-store"
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff" and "referrer-policy" in page.headers
    assert (await client.get("/api/v1/session")).headers["cache-control"] == "no-store"


async def test_without_a_dashboard_it_says_how_to_build_one(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "find_dist", lambda: None)
    page = await (await api.client()).get("/")
    assert page.status_code == 503 and "make install" in page.text
