"""Invalid input is a 422 with an error body, never a 500."""

import asyncio
import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codehub.domain.states import Role
from tests.integration.api.conftest import Api
from tests.selection import EVERYTHING
from tests.waiting import PATIENCE

V1 = "/api/v1"


NOT_AN_OBJECT = "The body is not a JSON object. Send one, with Content-Type: application/json."
BAD_WORKSPACES: list[Any] = [
    {},
    {"name": ""},
    {"name": "   "},
    {"name": "x" * 65},
    {"name": "a\0b"},
    {"name": "a\nb"},
    {"name": "a\u202eb"},
    {"name": 5},
    {"name": None},
    {"name": ["a"]},
    {"name": "a", "surprise": 1},
    {"name": "a", "description": "a\0b"},
    {"name": "a", "description": "x" * 1001},
    {"name": "a", "image_ref": "no-such-image"},
    {"name": "a", "image_ref": ""},
    {"name": "a", "image_ref": "\0"},
    {"name": "a", "standby_ttl_seconds": -1},
    {"name": "a", "standby_ttl_seconds": 1},
    {"name": "a", "standby_ttl_seconds": 179},
    {"name": "a", "standby_ttl_seconds": 10**30},
    {"name": "a", "standby_ttl_seconds": "600"},
    {"name": "a", "standby_ttl_seconds": True},
    {"name": "a", "standby_ttl_seconds": 600.5},
    {"name": "a", "archive_ttl_seconds": 2**31},
    {"name": "a", "awake_cpu_percent": -1},
    {"name": "a", "awake_cpu_percent": 10_001},
    {"name": "a", "awake_cpu_percent": "50"},
    {"name": "a", "desired_state": "DELETED"},
    {"name": "a", "desired_state": "PENDING"},
    {"name": "a", "desired_state": "running"},
    {"name": "a", "desired_state": None},
    [],
    "a",
    None,
    5,
]


async def test_a_body_that_is_no_json_object_is_named_as_such(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for content, headers, message in (
        (b"{", {"Content-Type": "application/json"}, "The body is not valid JSON."),
        (b'{"name": "a"}', {"Content-Type": "application/x-www-form-urlencoded"}, NOT_AN_OBJECT),
        (b"[]", {"Content-Type": "application/json"}, NOT_AN_OBJECT),
    ):
        response = await alice.post(f"{V1}/workspaces", content=content, headers=headers)
        assert response.status_code == 422
        assert response.json()["error"]["message"] == message


async def test_an_invalid_workspace_is_a_422(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for body in BAD_WORKSPACES:
        _assert_rejected(await alice.post(f"{V1}/workspaces", json=body), body)
    assert (await alice.get(f"{V1}/workspaces")).json()["total"] == 0


async def test_valid_ttls_are_accepted(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for ttl in (None, 0, 180, 600.0, 31_536_000):  # to JSON, 600.0 is 600
        made = await api.workspace(alice, standby_ttl_seconds=ttl, archive_ttl_seconds=ttl)
        assert made["standby_ttl_seconds"] == made["archive_ttl_seconds"] == ttl


INVALID_JSON: list[tuple[bytes, bytes]] = [
    (b"{", b"application/json"),
    (b"", b"application/json"),
    (b"\xff\xfe", b"application/json"),
    (b'{"name": "\\ud800"}', b"application/json"),
    (b'{"name": NaN}', b"application/json"),
    (b'{"standby_ttl_seconds": ' + b"9" * 5000 + b', "name": "a"}', b"application/json"),
    (b"[" * 100_000, b"application/json"),
    (b'{"name": "a"}', b"text/plain"),
    (b'{"name": "a"}', b"\xff"),
    (b'{"name": "a"}', b""),
    (b"name=a", b"application/x-www-form-urlencoded"),
]


async def test_an_invalid_json_body_is_a_422(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for content, content_type in INVALID_JSON:
        headers = [(b"content-type", content_type)]
        answer = await alice.post(f"{V1}/workspaces", content=content, headers=headers)
        _assert_rejected(answer, (content[:50], content_type))


async def test_an_invalid_query_is_a_422(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    for query in (
        *(
            "limit=0",
            "limit=201",
            "limit=x",
            "limit=" + "9" * 5000,
            "offset=-1",
            "offset=99999999999999999999",
        ),
        *("phase=NOPE", "trash=maybe", "q=%00", "q=" + "x" * 201),
    ):
        _assert_rejected(await root.get(f"{V1}/workspaces?{query}"), query)
        _assert_rejected(await root.get(f"{V1}/admin/workspaces?{query}"), query)


async def test_searches_accept_unusual_characters(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for q in ("%FF%FE", "%ED%A0%80", "%25%5F%5C", "%E2%80%AE", "'; DROP TABLE users; --"):
        assert (await alice.get(f"{V1}/workspaces?q={q}")).status_code == 200, q


async def test_an_invalid_id_is_a_404(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    for name in ("x", "%00", "..", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "1" * 5000, "%FF", "💥"):
        answer = await root.get(f"{V1}/workspaces/{name}/timeline")
        assert answer.status_code == 404, name
        assert answer.json()["error"]["code"] in ("WORKSPACE_NOT_FOUND", "NOT_FOUND")
        assert (await root.delete(f"{V1}/users/{name}")).status_code in (404, 405), name


async def test_a_large_body_is_a_413(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    answer = await alice.post(f"{V1}/workspaces", json={"name": "x" * (1 << 20)})
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "PAYLOAD_TOO_LARGE"
    assert "256 KiB" in answer.json()["error"]["message"]

    async def endless() -> Any:
        for _ in range(40):
            yield b" " * 65536

    answer = await alice.post(f"{V1}/workspaces", content=endless())
    assert answer.status_code == 413


async def test_an_unknown_path_is_a_404_and_an_unknown_method_a_405(api: Api) -> None:
    client = await api.client()
    for path in ("/api", "/api/", "/api/v1", "/api/v1/nope", "/api/v2/workspaces"):
        for method in ("GET", "POST", "DELETE"):
            answer = await client.request(method, path)
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "NOT_FOUND", path
    answer = await client.put(f"{V1}/workspaces")
    assert answer.status_code == 405 and answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
    assert (await client.post("/")).status_code == 405


async def test_cross_site_calls_are_refused(api: Api) -> None:
    alice = await api.signed_in_client("alice")
    body = {"name": "a", "desired_state": "STANDBY"}
    made = await api.workspace(alice)
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.localhost:8080"}):
        for answer in (
            await alice.post(f"{V1}/workspaces", json=body, headers=headers),
            await alice.delete(f"{V1}/workspaces/{made['id']}", headers=headers),
            await alice.post(f"{V1}/logout", headers=headers),
            await (await api.client()).post(
                f"{V1}/login", json={"username": "a", "password": "b"}, headers=headers
            ),
        ):
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "FORBIDDEN"
        assert (await alice.get(f"{V1}/workspaces", headers=headers)).status_code == 200
    own = {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8080"}
    assert (await alice.post(f"{V1}/workspaces", json=body, headers=own)).status_code == 201


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        *("name", "description", "memo", "image_ref", "standby_ttl_seconds", "archive_ttl_seconds"),
        *(
            "awake_cpu_percent",
            "desired_state",
            "from",
            "archive_op_id",
            "seconds",
            "username",
            "password",
            "role",
        ),
        *("current", "new"),
    ]
)
BODIES = JSON | st.dictionaries(
    FIELDS, JSON | st.sampled_from(["RUNNING", "STANDBY", "archive", 600]), max_size=6
)
CALLS = st.sampled_from(
    [("POST", "/workspaces"), ("PATCH", "/workspaces/{w}"), ("POST", "/users"), ("PATCH", "/users/{u}")]
    + [("POST", f"/workspaces/{{w}}/{action}") for action in ("recover", "cancel", "undelete", "extend")]
    + [("POST", "/login"), ("POST", "/session/password")]
)


async def test_no_json_body_is_ever_a_500(api: Api) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    other = await api.quick_client("somebody", Role.USER)
    made = await api.workspace(root)
    loop = asyncio.get_running_loop()
    names = {"w": made["id"], "u": api.ids["somebody"]}

    async def call(method: str, path: str, body: Any) -> httpx.Response:
        content = json.dumps(body, ensure_ascii=True).encode()
        headers = {"content-type": "application/json"}
        return await root.request(method, V1 + path.format(**names), content=content, headers=headers)

    @settings(max_examples=150 if EVERYTHING else 60, database=None, suppress_health_check=list(HealthCheck))
    @given(CALLS, BODIES)
    def check(target: tuple[str, str], body: Any) -> None:
        answer = asyncio.run_coroutine_threadsafe(call(*target, body), loop).result(PATIENCE)
        assert answer.status_code < 500, (target, body, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error"}

    await asyncio.to_thread(check)
    assert (await other.get(f"{V1}/session")).status_code in (200, 401)


def _assert_rejected(answer: httpx.Response, context: object) -> None:
    assert answer.status_code == 422, (context, answer.text)
    assert set(answer.json()) == {"error"} and answer.json()["error"]["code"] == "VALIDATION_ERROR"
    assert answer.json()["error"]["message"]
