"""Journey of a new user with real code-server, in Chromium and with curl, and access checks."""

import contextlib
import functools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.conftest import ADMIN_PASSWORD, Hub, new_context, running_hub
from tests.e2e.dashboard import DashboardUser
from tests.e2e.vscode import (
    edit_a_file,
    expect_ide,
    expect_plain_first_screen,
    run_in_terminal,
    wait_until_ide_ready,
)
from tests.services import System
from tests.waiting import PATIENCE, wait_for

TEXT = "a line that must come back"
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Accept": "text/html"}
PASSWORD = "a password of their own"
SERVICE_WORKER_IS_REGISTERED = "async () => Boolean(await navigator.serviceWorker.getRegistration('/'))"
"""VS Code's service worker has a wider scope than its path. Only a separate origin allows that."""


@pytest.fixture(scope="module")
def hub(browser: Browser) -> Iterator[Hub]:
    with running_hub(browser) as made:
        yield made


def test_a_new_user_edits_archives_and_restores_a_workspace(
    hub: Hub, browser: Browser, screenshots: Path
) -> None:
    newcomer = {"username": "newcomer", "password": PASSWORD, "role": "user"}
    assert hub.client.post("/api/v1/users", json=newcomer).status_code == 201
    visitor = DashboardUser(new_context(browser), hub.system, screenshots)
    visitor.sign_in("newcomer", PASSWORD)
    workspace_id = visitor.create("my first workspace")
    visitor.expect_phase("RUNNING")
    visitor.take_screenshot("3-running")
    home = hub.home(workspace_id)
    hub.write_settings(workspace_id)

    ide = visitor.open_workspace()
    ide.wait_for_url(re.compile(rf"//{workspace_id}\.localhost:"))
    wait_until_ide_ready(ide)
    expect_plain_first_screen(ide, "my first workspace")
    visitor.take_screenshot("4-first-screen", ide)
    ide.wait_for_function(SERVICE_WORKER_IS_REGISTERED)
    run_in_terminal(ide, "touch note.txt; echo from-the-terminal > terminal.txt; id -un")
    expect(ide.locator(".terminal-wrapper.active .xterm-rows")).to_contain_text("coder@my-first-workspace:")
    wait_for((home / "terminal.txt").exists, "the terminal's file")
    edit_a_file(ide, "note.txt", TEXT)
    wait_for(lambda: (home / "note.txt").read_text() == TEXT, "the saved file")
    visitor.take_screenshot("4-ide", ide)
    ide.close()

    visitor.click_action("stop")
    visitor.expect_phase("STANDBY")
    visitor.click_action("archive")
    visitor.expect_phase("ARCHIVED")
    assert not home.exists()
    visitor.take_screenshot("5-archived")
    visitor.click_action("restore")
    visitor.expect_phase("STANDBY")
    assert (home / "note.txt").read_text() == TEXT
    visitor.click_action("start")
    visitor.expect_phase("RUNNING")
    again = visitor.open_workspace()
    expect_ide(again)
    visitor.take_screenshot("6-restored", again)
    again.close()

    visitor.click_action("delete")
    visitor.page.get_by_test_id("confirm-delete").click()
    expect(visitor.card).to_have_count(0)
    visitor.page.get_by_test_id("nav-trash").click()
    visitor.expect_phase("DELETED")
    visitor.take_screenshot("7-trash")
    visitor.click_action("undelete")
    expect(visitor.card).to_have_count(0)
    visitor.page.get_by_test_id("nav-workspaces").click()
    visitor.expect_phase("ARCHIVED")
    from_archive = visitor.open_workspace()
    expect_ide(from_archive)
    from_archive.close()
    visitor.expect_phase("RUNNING")
    assert (home / "note.txt").read_text() == TEXT
    visitor.page.get_by_test_id("lang-switch").click()
    expect(visitor.page.locator("html")).to_have_attribute("lang", "ko")
    visitor.take_screenshot("8-korean")


def test_an_admin_sets_a_password_with_their_own_and_finds_it_in_the_audit_log(
    hub: Hub, screenshots: Path
) -> None:
    hub.client.post("/api/v1/session/confirm", json={"password": ADMIN_PASSWORD})
    visitor = {"username": "forgetful", "password": PASSWORD, "role": "user"}
    assert hub.client.post("/api/v1/users", json=visitor).status_code == 201
    page = hub.context.new_page()
    page.goto(f"{hub.system.base_url}/admin/users")
    page.locator('[data-username="forgetful"]').get_by_role("button", name="Set password").click()
    page.get_by_test_id("set-password").fill("a new password")
    for entered, refused in ((PASSWORD, True), (ADMIN_PASSWORD, False)):
        page.get_by_test_id("your-password").fill(entered)
        page.get_by_test_id("your-password").press("Enter")
        expect(page.get_by_role("alert")).to_have_count(int(refused))
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.get_by_test_id("admin-audit").click()
    rows = page.get_by_test_id("audit-row")
    expect(rows.first).to_contain_text("Set a new password for forgetful")
    expect(rows.nth(1)).to_contain_text("Entered a wrong password to confirm a change")
    expect(rows.first).to_contain_text(hub.system.admin_username)
    page.screenshot(path=screenshots / "9-audit-log.png")
    page.get_by_test_id("audit-action").select_option("user.created")
    expect(rows.first).to_contain_text("Created the user")
    expect(rows.filter(has_text="password")).to_have_count(0)

    page.set_viewport_size({"width": 360, "height": 740})
    page.reload()
    expect(page.get_by_test_id("admin-audit")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=screenshots / "9-audit-log-phone.png")
    page.close()


def test_tokens_made_in_the_dashboard_work_until_they_are_revoked(hub: Hub, screenshots: Path) -> None:
    page = hub.context.new_page()
    page.goto(f"{hub.system.base_url}/account")
    own = _make_token(page, "ci")
    page.screenshot(path=screenshots / "9-token.png", full_page=True)
    url, headers = f"{hub.system.base_url}/api/v1/events", _bearer(own)
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE) as events:
        lines = events.iter_lines()
        assert next(lines)
        page.get_by_test_id("token-row").get_by_role("button").click()
        page.get_by_test_id("confirm-revoke-token").click()
        expect(page.get_by_test_id("token-row")).to_have_count(0)
        with contextlib.suppress(httpx.RemoteProtocolError):  # the gateway closes it in mid-body
            assert "heartbeat" not in "".join(lines)
    assert httpx.get(f"{hub.system.base_url}/api/v1/workspaces", headers=_bearer(own)).status_code == 401

    page.goto(f"{hub.system.base_url}/admin/users")
    page.get_by_test_id("user-name").fill("robot")
    page.get_by_test_id("user-service").check()
    page.get_by_test_id("user-submit").click()
    page.locator('[data-username="robot"]').get_by_test_id("user-tokens").click()
    session = httpx.get(f"{hub.system.base_url}/api/v1/session", headers=_bearer(_make_token(page, "deploy")))
    assert session.json()["user"]["username"] == "robot"
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.screenshot(path=screenshots / "9-service-account-phone.png", full_page=True)
    page.close()


def test_the_logs_of_a_workspace_are_followed_as_text_that_does_nothing(hub: Hub, screenshots: Path) -> None:
    [workspace_id] = hub.create("talkative")
    page = hub.context.new_page()
    page.goto(f"{hub.system.base_url}/workspaces/{workspace_id}")
    page.get_by_test_id("show-logs").click()
    logs = page.get_by_test_id("logs")
    expect(logs).to_contain_text("server listening")
    with (hub.system.data_dir / "execs" / workspace_id / "output.log").open("a") as output:
        output.write("\x1b[31m<img src=x onerror=alert(1)>\r\n\x9b0m\u202eend\n")
    expect(logs).to_contain_text("\u241b[31m<img src=x onerror=alert(1)>\n\ufffd0m\ufffdend")
    expect(logs.locator("*")).to_have_count(0)
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.screenshot(path=screenshots / "9-logs-phone.png", full_page=True)
    hub.change(workspace_id, desired_state="STANDBY")
    expect(page.get_by_text("no output follows")).to_be_visible()
    page.get_by_test_id("lang-switch").click()
    expect(page.get_by_test_id("logs-panel").get_by_role("heading")).to_have_text("로그")
    page.get_by_test_id("lang-switch").click()
    page.close()


def _make_token(page: Page, name: str) -> str:
    page.get_by_test_id("token-name").fill(name)
    page.get_by_test_id("token-submit").click()
    return page.get_by_test_id("token-secret").input_value()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_api_page_loads_nothing_from_other_hosts(hub: Hub) -> None:
    page = hub.context.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{hub.system.base_url}/docs")
    calls = page.get_by_test_id("api-operation")
    expect(calls.filter(has_text="/api/v1/workspaces/{workspace_id}/recover")).to_be_visible()
    calls.filter(has_text="Create Workspace").locator("summary").click()
    expect(calls.filter(has_text="Create Workspace").get_by_text("desired_state").first).to_be_visible()
    assert all(url.startswith(hub.system.base_url) for url in requested), requested
    page.close()


class Curl:
    """A user with curl and a cookie jar."""

    def __init__(self, system: System, jar: Path) -> None:
        self._system = system
        self._jar = jar

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        command = ["curl", "-sS", "-X", method, "-b", self._jar, "-c", self._jar, "-w", "\n%{http_code}"]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(
            [*command, self._system.base_url + path],
            capture_output=True, text=True, check=True, timeout=PATIENCE,
        )  # fmt: skip
        content, _, status = done.stdout.rpartition("\n")
        return int(status), json.loads(content) if content else None

    def sign_in(self, username: str, password: str) -> None:
        status, _ = self("POST", "/api/v1/login", {"username": username, "password": password})
        assert status == 200

    def settle(self, workspace_id: str, phase: str) -> dict[str, Any]:
        def settled() -> dict[str, Any] | None:
            status, workspace = self("GET", f"/api/v1/workspaces/{workspace_id}")
            assert status == 200
            return workspace if is_settled(workspace, phase) else None

        return wait_for(settled, phase, every=0.2)


def test_the_same_journey_with_curl_and_access_checks(hub: Hub, tmp_path: Path) -> None:
    curl = Curl(hub.system, tmp_path / "cookies")
    curl.sign_in("admin", ADMIN_PASSWORD)
    status, made = curl("POST", "/api/v1/workspaces", {"name": "by curl"})
    assert status == 201
    workspace_id = made["id"]
    path = f"/api/v1/workspaces/{workspace_id}"
    curl.settle(workspace_id, "RUNNING")
    note = hub.home(workspace_id) / "note"
    note.write_text("mine")
    check_access(hub.system, curl, workspace_id)

    for desired in ("STANDBY", "ARCHIVED", "RUNNING"):
        assert curl("PATCH", path, {"desired_state": desired})[0] == 200
        curl.settle(workspace_id, desired)
    assert note.read_text() == "mine"

    assert curl("DELETE", path) == (204, None)
    assert curl("GET", path)[0] == 404
    wait_for(lambda: is_settled(in_trash(curl, workspace_id), "DELETED"), "the delete to end", every=0.2)
    assert curl("POST", f"{path}/undelete", {})[0] == 200
    curl.settle(workspace_id, "ARCHIVED")
    assert curl("PATCH", path, {"desired_state": "STANDBY"})[0] == 200
    curl.settle(workspace_id, "STANDBY")
    assert note.read_text() == "mine"
    _, timeline = curl("GET", f"{path}/timeline")
    events = [item["event"] for item in timeline["items"]]
    assert {"created", "claimed", "finished", "archived", "deleted", "undeleted"} <= set(events)


def is_settled(workspace: dict[str, Any], phase: str) -> bool:
    return workspace["phase"] == phase and workspace["operation"] == "NONE"


def in_trash(curl: Curl, workspace_id: str) -> dict[str, Any]:
    _, page = curl("GET", "/api/v1/workspaces?trash=true")
    (found,) = [item for item in page["items"] if item["id"] == workspace_id]
    workspace: dict[str, Any] = found
    return workspace


def check_access(system: System, curl: Curl, workspace_id: str) -> None:
    """Check access to a running workspace for its owner, another user, an admin and a stranger."""
    for name, role in (("other", "user"), ("chief", "admin")):
        status, _ = curl("POST", "/api/v1/users", {"username": name, "password": PASSWORD, "role": role})
        assert status == 201
    entry_url = f"{system.base_url}/w/{workspace_id}/"
    own_host = f"{workspace_id}.localhost:{system.port}"
    visitors = {
        "stranger": httpx.Client(timeout=PATIENCE),
        "other": system.client("other", PASSWORD),
        "chief": system.client("chief", PASSWORD),
        "owner": system.client("admin", ADMIN_PASSWORD),
    }
    answers = {name: visitor.get(entry_url, headers=NAVIGATION) for name, visitor in visitors.items()}
    assert answers["stranger"].status_code == 302
    assert "/login?next=" in answers["stranger"].headers["location"]
    assert answers["other"].status_code == 403
    assert answers["chief"].status_code == 403, "an admin cannot open it"
    assert answers["owner"].status_code == 302

    direct, get = f"http://127.0.0.1:{system.port}", functools.partial(httpx.get, timeout=PATIENCE)
    at_workspace = {"Host": own_host, **NAVIGATION}
    begin = httpx.URL(answers["owner"].headers["location"])
    assert begin.host == f"{workspace_id}.localhost"
    started = get(f"{direct}{begin.raw_path.decode()}", headers=at_workspace)
    nonce = {"Cookie": started.headers["set-cookie"].split(";")[0]}
    with_ticket = visitors["owner"].get(started.headers["location"], headers=NAVIGATION)
    ticket = f"{direct}{httpx.URL(with_ticket.headers['location']).raw_path.decode()}"
    second_ticket = visitors["owner"].get(started.headers["location"], headers=NAVIGATION)
    stolen = f"{direct}{httpx.URL(second_ticket.headers['location']).raw_path.decode()}"
    refused = get(stolen, headers=at_workspace)
    assert refused.status_code == 403, "a ticket is valid in one browser"
    assert "set-cookie" not in refused.headers
    enter = get(ticket, headers=at_workspace | nonce)
    assert enter.status_code == 302
    again = get(ticket, headers=at_workspace | nonce)
    assert "set-cookie" not in again.headers, "a ticket is valid once"

    cookie = enter.headers["set-cookie"].split(";")[0]
    with_cookie = get(f"{direct}/healthz", headers={"Host": own_host, "Cookie": cookie})
    assert with_cookie.status_code == 200
    other_host = f"{'0' * 26}.localhost:{system.port}"
    for host, sent in ((own_host, ""), (own_host, cookie + "x"), (other_host, cookie)):
        refused = get(f"{direct}/static/x", headers={"Host": host, "Cookie": sent})
        assert refused.status_code in (401, 404), (host, sent)

    visitors["owner"].post("/api/v1/logout")
    wait_for(
        lambda: get(f"{direct}/static/x", headers={"Host": own_host, "Cookie": cookie}).status_code == 401,
        "the workspace's cookie to end with its session",
    )
    for visitor in visitors.values():
        visitor.close()
