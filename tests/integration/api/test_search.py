"""Search for workspaces: results and limits."""

import asyncio

import pytest
from sqlalchemy import text

from codehub.api import workspaces as workspace_calls
from codehub.database.engine import create_engine
from codehub.domain.states import Role
from tests.integration.api.conftest import Api

V1 = "/api/v1"


async def search(client_get: object, q: str) -> list[str]:
    answer = await client_get(f"{V1}/workspaces", params={"q": q})  # type: ignore[operator]
    assert answer.status_code == 200, answer.text
    return sorted(item["name"] for item in answer.json()["items"])


async def test_a_search_finds_every_word_in_the_name_description_or_memo(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    one = await api.workspace(alice, name="Shop", description="100% of_it")
    await api.workspace(alice, name="Other", description="payments")
    await alice.patch(f"{V1}/workspaces/{one['id']}", json={"memo": "the Payment service\nback\\slash"})
    assert await search(alice.get, "PAYMENT") == ["Other", "Shop"]
    assert await search(alice.get, "  shop   payment ") == ["Shop"]
    assert await search(alice.get, "shop nothing") == []
    assert await search(alice.get, "100%") == ["Shop"]
    assert await search(alice.get, "1%0") == [] and await search(alice.get, "of.it") == []
    assert await search(alice.get, "k\\s") == ["Shop"]
    assert await search(alice.get, "") == ["Other", "Shop"]


async def test_every_page_of_a_search_has_the_total(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    for number in range(5):
        await api.workspace(alice, name=f"w{number}")
    for limit, offset, items in ((2, 0, 2), (2, 4, 1), (5, 0, 5), (2, 8, 0), (200, 0, 5)):
        params = {"q": "w", "limit": str(limit), "offset": str(offset)}
        page = (await alice.get(f"{V1}/workspaces", params=params)).json()
        assert (len(page["items"]), page["total"]) == (items, 5), params


async def test_an_admin_does_not_search_the_memos_of_others(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    root = await api.quick_client("root", Role.ADMIN)
    one = await api.workspace(alice, name="Shop")
    await alice.patch(f"{V1}/workspaces/{one['id']}", json={"memo": "private"})
    search = f"{V1}/admin/workspaces"
    assert (await root.get(search, params={"q": "private"})).json()["total"] == 0
    assert (await root.get(search, params={"q": "shop"})).json()["total"] == 1


@pytest.mark.parametrize("q", ["x" * 101, " ".join("abcdefghi")])
async def test_a_long_search_is_422_and_names_the_bound(api: Api, q: str) -> None:
    root = await api.quick_client("root", Role.ADMIN)
    for path in ("workspaces", "admin/workspaces"):
        refused = await root.get(f"{V1}/{path}", params={"q": q})
        assert refused.status_code == 422 and refused.json()["error"]["code"] == "VALIDATION_ERROR"
        assert refused.json()["error"]["message"].startswith("q: ")


async def test_a_search_that_takes_too_long_is_stopped_and_503(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_calls, "SEARCH_SECONDS", 0.001)
    alice = await api.quick_client("alice", Role.USER)
    one = await api.workspace(alice)
    async with api.engine.begin() as conn:  # a search has to wait for this lock
        await conn.execute(text("LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE"))
        answer = await alice.get(f"{V1}/workspaces", params={"q": "x"})
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert "too long" in answer.json()["error"]["message"]
    monkeypatch.undo()
    assert (await alice.get(f"{V1}/workspaces/{one['id']}")).status_code == 200


async def test_a_statement_of_any_call_ends_after_its_time(api: Api) -> None:
    async with api.app.state.services.engine.connect() as conn:
        assert await conn.scalar(text("SHOW statement_timeout")) == "15s"
    engine = create_engine(api.settings.database_url, statement_seconds=0.05)
    try:
        api.app.state.services.__dict__["engine"] = engine
        async with api.engine.begin() as conn:
            await conn.execute(text("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE"))
            client = await api.client()
            client.cookies.set("session", "any")
            answer = await client.get(f"{V1}/session")
    finally:
        await engine.dispose()
    assert answer.status_code == 503 and "too long" in answer.json()["error"]["message"]


async def test_each_user_runs_one_search_at_a_time(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    bob = await api.quick_client("bob", Role.USER)
    searches = api.app.state.services.searches_per_user
    async with searches.slot(api.ids["alice"]):
        waiting = asyncio.create_task(alice.get(f"{V1}/workspaces", params={"q": "x"}))
        assert (await bob.get(f"{V1}/workspaces", params={"q": "x"})).status_code == 200
        assert (await alice.get(f"{V1}/workspaces")).status_code == 200
        assert not waiting.done()
    assert (await waiting).status_code == 200
