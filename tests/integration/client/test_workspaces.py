"""Workspaces, leases, tokens and users through the SDK, on a whole system."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from codehub.client import Conflict, Forbidden, InvalidRequest, NotFound, Unauthorized
from tests.integration.client.conftest import Sdk, is_deleted
from tests.waiting import PATIENCE, wait_for


def test_a_workspace_goes_through_its_life(sdk: Sdk, tmp_path: Path) -> None:
    workspaces = sdk.client.workspaces
    made = workspaces.create("life", description="of a test", desired_state="STANDBY")
    assert made.wait_until("STANDBY", PATIENCE).phase == "STANDBY"
    assert workspaces.find("life").id == workspaces.find(made.id).id == workspaces.get(made.id).id == made.id
    assert made.id in [each.id for each in workspaces.list()]
    name = f"living-{sdk.kind}"
    made.update(memo="note", name=name)
    made.refresh()
    assert (made.name, made.info.memo, made.info.description) == (name, "note", "of a test")

    made.start().wait_until("RUNNING", PATIENCE)
    assert made.info.standby is not None and made.info.standby.reason
    lease = made.leases.create(60, "a test")
    assert [each.id for each in made.leases.list()] == [lease.id]
    assert made.leases.renew(lease.id, 600).expires_at > lease.expires_at
    made.leases.delete(lease.id)
    assert made.leases.list() == []
    assert isinstance(made.logs(), bytes)
    assert "memory" in str(made.stats())

    made.archive().wait_until("ARCHIVED", PATIENCE)
    [archive] = made.archives()
    downloaded = made.download_archive(tmp_path)
    assert (downloaded.name, downloaded.stat().st_size) == ("home.tar.zst", archive.bytes)
    assert made.download_archive(tmp_path / "x", archive.archive_op_id).stat().st_size == archive.bytes
    made.restore().wait_until("STANDBY", PATIENCE)
    made.restore(archive.archive_op_id)
    wait_for(lambda: made.refresh().archive_to_restore is None and made.info.is_at_rest, "the restore")
    made.delete()
    made.wait_until("DELETED", PATIENCE)
    with pytest.raises(NotFound):
        workspaces.find(name)
    found = workspaces.find(name, trash=True)
    wait_for(lambda: is_undeleted(found), "the workspace to come back")
    assert made.timeline()
    wait_for(lambda: is_deleted(made), "the workspace to be deleted")


def is_undeleted(workspace: Any) -> bool:
    try:
        workspace.undelete()
    except Conflict:
        return False
    return True


def test_errors_have_the_code_and_message_of_the_server(sdk: Sdk) -> None:
    with pytest.raises(NotFound) as missing:
        sdk.client.workspaces.get("01hzzzzzzzzzzzzzzzzzzzzzzz")
    assert (missing.value.status, missing.value.code) == (404, "WORKSPACE_NOT_FOUND")
    with pytest.raises(InvalidRequest) as wrong:
        sdk.client.workspaces.create("x" * 65)
    assert "name" in wrong.value.message
    with pytest.raises(InvalidRequest):
        sdk.client.workspaces.get("../session")
    with pytest.raises(Unauthorized):
        sdk.connect(sdk.system.base_url, "chub_" + "x" * 40).session()


def test_two_workspaces_of_one_name_need_an_id(sdk: Sdk) -> None:
    twins = [sdk.client.workspaces.create("twin", desired_state="STANDBY") for _ in range(2)]
    with pytest.raises(Conflict) as problem:
        sdk.client.workspaces.find("twin")
    assert all(each.id in str(problem.value) for each in twins)
    for each in twins:
        each.wait_until("STANDBY", PATIENCE)
        wait_for(lambda each=each: is_deleted(each), "the workspace to be deleted")  # type: ignore[misc]


def test_the_url_of_a_port_leads_to_the_origin_of_the_port(sdk: Sdk, workspace: Any) -> None:
    """Names below localhost resolve in browsers only, so that the test reads where it is sent."""
    with contextlib.closing(sdk.system.client()) as browser:
        sent = browser.get(workspace.port_url(3000, "page?a=b"))
    location = urlsplit(sent.headers["location"])
    assert location.hostname == f"3000--{workspace.id}.localhost", sent.headers
    assert location.path == "/page" or "page" in location.query


def test_tokens_are_made_by_a_person_and_not_by_a_token(sdk: Sdk) -> None:
    with pytest.raises(Forbidden):
        sdk.client.tokens.list()
    with sdk.sign_in() as person:
        name = f"made by {sdk.kind}"
        made = person.tokens.create(name, ["read"], expires_in_days=1)
        other = sdk.connect(sdk.system.base_url, made.token)
        session = other.session()
        assert session.token is not None and (session.token.name, session.token.scopes) == (name, ("read",))
        assert made.token not in repr(made)
        assert name in [each.name for each in person.tokens.list()]
        person.tokens.revoke(made.id)
        wait_for(lambda: is_rejected(other), "the token to end")
        other.close()


def is_rejected(client: Any) -> bool:
    try:
        client.session()
    except Unauthorized:
        return True
    return False


def test_signing_out_ends_the_session(sdk: Sdk) -> None:
    person = sdk.sign_in()
    cookie = (person._target if sdk.kind == "async" else person)._calls.server.cookie
    headers = {"Cookie": cookie}
    url = f"{sdk.system.base_url}/api/v1/session"
    assert httpx.get(url, headers=headers).status_code == 200
    person.close()
    wait_for(lambda: httpx.get(url, headers=headers).status_code == 401, "the session to end")


def test_an_admin_manages_accounts(sdk: Sdk) -> None:
    with sdk.sign_in() as admin:
        service = admin.users.create_service(f"deploy-{sdk.kind}")
        person = admin.users.create(f"person-{sdk.kind}", "a good password")
        assert {service.id, person.id} <= {each.id for each in admin.users.list()}
        assert service.service and admin.users.set_role(person.id, "admin").role == "admin"
        made = admin.users.tokens(service.id).create("ci", ["read"])
        assert [each.id for each in admin.users.tokens(service.id).list()] == [made.id]
        admin.users.tokens(service.id).revoke(made.id)
        for each in (service, person):
            admin.users.delete(each.id)
        assert "tiny" in [image.name for image in admin.images()]


@pytest.fixture
def environment(sdk: Sdk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    for name in [each for each in os.environ if each.startswith("CODEHUB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CODEHUB_CREDENTIALS_FILE", str(tmp_path / "credentials.json"))
    yield tmp_path


def test_a_client_finds_its_server_in_the_environment(
    sdk: Sdk, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODEHUB_URL", sdk.system.base_url)
    monkeypatch.setenv("CODEHUB_TOKEN", sdk.token)
    with sdk.connect() as client:
        assert client.session().user.username == "admin"
