"""Health, readiness, metrics, OpenAPI and the dashboard's files."""

import asyncio
import json
import shutil
import socket
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, insert, text, update

from codehub import health_endpoints, internal_http
from codehub.api import dashboard_files
from codehub.api.app import create_app
from codehub.api.server import listen, make_server
from codehub.database import installation
from codehub.database.tables import health_checks, leadership
from codehub.domain.health_checks import LEADER_CHECKS, VITAL, CheckName, Readiness
from codehub.domain.states import Role
from codehub.domain.storage_root import StorageRoot
from codehub.settings import Settings
from tests.integration.api.conftest import BASE, Api
from tests.services import Services, short_temp_dir
from tests.waiting import PATIENCE, until


async def _claim_storage(api: Api) -> None:
    await installation.load_or_create_installation(api.engine, "here", 2_000_000)
    for root in StorageRoot:
        await installation.PostgresClaims(api.engine).record(root)


async def _set_leader(api: Api, age: str) -> None:
    async with api.engine.begin() as conn:
        heartbeat = func.now() - text(f"interval '{age}'")
        await conn.execute(update(leadership).values(holder="host:1", epoch=1, heartbeat_at=heartbeat))


async def check_readiness(api: Api) -> Readiness:
    return await health_endpoints.check_readiness(api.settings.database_url, api.settings.redis_url)


async def test_readiness_names_each_failure_and_its_remedy(api: Api) -> None:
    found = await check_readiness(api)
    assert not found.ready and not found.checks[CheckName.COORDINATOR].ok
    assert "codehub serve coordinator" in found.checks[CheckName.COORDINATOR].remedy
    for name in (CheckName.DATABASE, CheckName.SCHEMA, CheckName.REDIS):
        assert found.checks[name].ok and not found.checks[name].remedy
    assert "volumes and archives" in found.checks[CheckName.STORAGE].message
    await _set_leader(api, "0 seconds")
    assert not (await check_readiness(api)).ready, "no workspace can start yet"
    await _claim_storage(api)
    found = await check_readiness(api)
    assert found.ready and found.degraded == list(LEADER_CHECKS)
    assert found.checks[CheckName.DISK].message == "Unknown: no coordinator has checked this yet."
    await _set_leader(api, "31 seconds")
    found = await check_readiness(api)
    assert not found.ready and "no heartbeat for 31 s" in found.checks[CheckName.COORDINATOR].message


@pytest.mark.parametrize(
    ("version", "advice"), [("0001", "run `codehub migrate`"), ("future", "install that version")]
)
async def test_a_database_of_another_version_is_not_ready(api: Api, version: str, advice: str) -> None:
    async with api.engine.begin() as conn:
        await conn.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    found = await check_readiness(api)
    assert not found.ready and advice in found.checks[CheckName.SCHEMA].message


async def test_a_database_without_a_schema_is_not_ready(services: Services, redis_url: str) -> None:
    url = await services.empty_database()
    try:
        found = await health_endpoints.check_readiness(url, redis_url)
    finally:
        await services.drop_database(url)
    assert found.checks[CheckName.DATABASE].ok and not found.ready
    assert "the database is empty" in found.checks[CheckName.SCHEMA].message


async def test_a_redis_that_is_gone_is_not_ready(api: Api, tmp_path: Path) -> None:
    await _set_leader(api, "0 seconds")
    await _claim_storage(api)
    found = await health_endpoints.check_readiness(api.settings.database_url, f"unix://{tmp_path}/redis.sock")
    wrong = [name for name in VITAL if not found.checks[name].ok]
    assert not found.ready and wrong == [CheckName.REDIS]
    assert "REDIS_URL" in found.checks[CheckName.REDIS].remedy


async def test_a_server_that_accepts_but_never_answers_times_out(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_endpoints, "CHECK_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = await health_endpoints.check_readiness(
            f"postgresql://x:y@{address}/codehub", f"redis://{address}/0"
        )
    assert not any(check.ok for check in found.checks.values())
    assert "did not answer within" in found.checks[CheckName.DATABASE].message
    assert "did not answer within" in found.checks[CheckName.REDIS].message


async def test_with_every_dependency_down_the_api_answers_503(settings: Settings, tmp_path: Path) -> None:
    unreachable = settings.model_copy(
        update={
            "database_url": f"postgresql://x:y@/codehub?host={tmp_path}",
            "redis_url": f"unix://{tmp_path}/redis.sock",
        }
    )
    found = await health_endpoints.check_readiness(unreachable.database_url, unreachable.redis_url)
    assert not found.ready and not any(check.ok for check in found.checks.values())
    app = create_app(unreachable)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            body = {"username": "a", "password": "b"}
            refused = await client.post("/api/v1/login", json=body)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "UNAVAILABLE"


async def test_readiness_and_metrics_are_not_on_the_api_itself(api: Api, dist: Path) -> None:
    client = await api.client()
    for path in ("/readyz", "/metrics", "/%72eadyz", "/%6detrics"):
        answer = await client.get(path)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "NOT_FOUND", path


async def test_the_internal_listener_serves_health_readiness_and_metrics(
    settings: Settings, api: Api
) -> None:
    """Run the complete server, as `codehub serve api` does."""
    data_dir = short_temp_dir()
    settings = settings.model_copy(update={"data_dir": data_dir})
    server, listening = make_server(settings), listen(settings.api_listen_address)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await until(lambda: server.started, "the API to answer")
        address = settings.internal_addresses("api")[0]

        async def get(path: str) -> tuple[int, bytes]:
            return await asyncio.to_thread(internal_http.get, address, path, PATIENCE)

        assert await get("/healthz") == (200, b'{"status": "ok"}\n')
        status, body = await get("/readyz")
        assert status == 503 and json.loads(body)["ready"] is False
        assert set(json.loads(body)["checks"]["coordinator"]) == {"ok", "message", "remedy"}
        await _set_leader(api, "0 seconds")
        await _claim_storage(api)
        status, body = await get("/readyz")
        assert status == 200 and json.loads(body)["degraded"] == list(LEADER_CHECKS)

        transport = httpx.AsyncHTTPTransport(uds=str(settings.api_socket))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            await client.get("/api/v1/workspaces/01hzy0000000000000000000aa")
        status, body = await get("/metrics")
        assert status == 200 and b'route="/api/v1/workspaces/{workspace_id}"' in body
        assert b"01hzy" not in body
        assert (await get("/api/v1/session"))[0] == 404
    finally:
        server.should_exit = True
        await serving
        listening.close()
        shutil.rmtree(data_dir)


async def test_metrics_count_by_route_without_user_names(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    made = await api.workspace(alice)
    await alice.get(f"/api/v1/workspaces/{made['id']}")
    page = api.app.state.metrics.exposition()[0].decode()
    assert 'route="/api/v1/workspaces/{workspace_id}"' in page
    assert made["id"] not in page and "alice" not in page


async def test_openapi_is_served_and_its_viewers_are_not(api: Api) -> None:
    client = await api.client()
    document = (await client.get("/api/v1/openapi.json")).json()
    assert "/api/v1/workspaces/{workspace_id}/recover" in document["paths"]
    assert "HTTPValidationError" not in str(document)


async def test_the_overview_counts_phases_users_and_errors(api: Api) -> None:
    root, alice = await api.quick_client("root", Role.ADMIN), await api.quick_client("alice", Role.USER)
    await api.workspace(alice, desired_state="RUNNING")
    broken = await api.workspace(alice)
    await api.set(broken["id"], phase="ERROR", error_reason="Timeout", error_count=1, error_message="slow")
    await _set_leader(api, "0 seconds")
    seen = (await root.get("/api/v1/admin/overview")).json()
    assert seen["phases"]["PENDING"] == 1 and seen["phases"]["ERROR"] == 1 and seen["phases"]["RUNNING"] == 0
    assert seen["running"] == 1 and seen["users"] == 2 and seen["leader"]["holder"] == "host:1"
    assert [item["id"] for item in seen["errors"]] == [broken["id"]]


async def test_the_overview_shows_what_weakens_security(settings: Settings, api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    seen = (await root.get("/api/v1/admin/overview")).json()
    assert (seen["insecure_http"], seen["wide_trusted_proxies"]) == (False, False)
    public = Settings(
        database_url=settings.database_url,
        redis_url=settings.redis_url,
        public_base_url="http://hub.example.org",
        apps_domain="apps.example.net",
        allow_insecure_http=True,
        trusted_proxies="0.0.0.0/0",
    )
    async with Api.running(public) as exposed:
        client = await exposed.client(Cookie=f"session={root.cookies['session']}")
        seen = (await client.get("/api/v1/admin/overview")).json()
        assert (seen["insecure_http"], seen["wide_trusted_proxies"]) == (True, True)


async def test_the_overview_shows_the_checks_of_readyz(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    await _set_leader(api, "0 seconds")
    async with api.engine.begin() as conn:
        values = {"ok": False, "message": "12 MiB free", "checked_at": func.now()}
        await conn.execute(insert(health_checks).values(name="disk", **values))
    checks = (await root.get("/api/v1/admin/overview")).json()["checks"]
    assert checks == health_endpoints.as_json(await check_readiness(api))["checks"]
    assert checks["coordinator"] == {"ok": True, "message": "host:1 leads.", "remedy": ""}
    assert checks["disk"]["message"] == "12 MiB free" and "DISK_RESERVE_BYTES" in checks["disk"]["remedy"]


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "dist"
    (made / "assets").mkdir(parents=True)
    (made / "index.html").write_text("<!doctype html><title>CodeHub</title>")
    (made / "assets" / "index-1a2b.js").write_text("1")
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(dashboard_files, "find_dist", lambda: made)
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


async def test_without_a_dashboard_the_page_shows_how_to_build_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_files, "find_dist", lambda: None)
    page = await (await api.client()).get("/")
    assert page.status_code == 503 and "make install" in page.text
