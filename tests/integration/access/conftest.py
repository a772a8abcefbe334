"""A whole `codehub up` with a running workspace, and commands in it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.coordinator.conftest import IDE
from tests.services import System
from tests.waiting import wait_for

TALK = 'touch "$HOME/say"; tail -n +1 -f "$HOME/say" & exec "$@" > /dev/null 2>&1'
"""An IDE whose output is what commands append to a file."""
IMAGES = f"""
[[image]]
name = "tiny"
ready_path = "/"
process = {json.dumps(["/usr/bin/python3", "-c", IDE, "{socket}"])}

[[image]]
name = "talking"
ready_path = "/"
process = {json.dumps(["/bin/sh", "-c", TALK, "sh", "/usr/bin/python3", "-c", IDE, "{socket}"])}
"""


@dataclass
class Workspace:
    """A running workspace of the admin, and calls about its commands."""

    system: System
    api: httpx.Client
    id: str

    @property
    def url(self) -> str:
        return f"/api/v1/workspaces/{self.id}"

    @property
    def home(self) -> Path:
        """Return the path of the home on this machine."""
        [home] = self.system.data_dir.glob(f"volumes/users/*/workspaces/{self.id}/home")
        return home

    @property
    def credential(self) -> dict[str, str]:
        """Return the header field that other clients need: that of a token, or the session's cookie."""
        if "Authorization" in self.api.headers:
            return {"Authorization": self.api.headers["Authorization"]}
        return {"Cookie": "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.api.cookies.jar)}

    def is_in(self, phase: str) -> bool:
        workspace = self.api.get(self.url).json()
        assert workspace["error_message"] is None, workspace
        return workspace["phase"] == phase and workspace["operation"] == "NONE"

    def wish(self, phase: str) -> None:
        answer = self.api.patch(self.url, json={"desired_state": phase})
        assert answer.status_code == 200, answer.text

    def post(self, command: str | list[str], **fields: object) -> httpx.Response:
        return self.api.post(f"{self.url}/execs", json={"command": command, **fields})

    def start(self, command: str | list[str], **fields: object) -> str:
        answer = self.post(command, **fields)
        assert answer.status_code == 201, answer.text
        exec_id: str = answer.json()["id"]
        return exec_id

    def exec(self, exec_id: str) -> dict[str, Any]:
        answer = self.api.get(f"{self.url}/execs/{exec_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def output(self, exec_id: str, **query: Any) -> httpx.Response:
        return self.api.get(f"{self.url}/execs/{exec_id}/output", params={"follow": True, **query})

    def run(self, command: str) -> str:
        """Run a command to its end, and return its output."""
        return self.output(self.start(command)).text

    def processes(self, argument: str) -> int:
        """Return how many processes of the workspace have this argument. Images need not have pgrep."""
        pattern = f"[{argument[0]}]{argument[1:]}"  # it does not match itself
        script = f"cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx '{pattern}'; true"
        return int(self.run(script))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing: apt-get install bubblewrap")
    images = tmp_path_factory.mktemp("images") / "images.toml"
    images.write_text(IMAGES)
    system = System({"IMAGES_FILE": str(images), "GATEWAY_WORKERS": "1", "LIMITS_MAX_RUNNING_PER_USER": "9"})
    try:
        yield system.start()
    finally:
        system.close()


@contextmanager
def running_workspace(system: System, image: str = "tiny") -> Iterator[Workspace]:
    with closing(system.client()) as api:
        made = api.post("/api/v1/workspaces", json={"name": "one", "image_ref": image})
        assert made.status_code == 201, made.text
        found = Workspace(system, api, made.json()["id"])
        wait_for(lambda: found.is_in("RUNNING"), "the workspace to run")
        yield found
        url = f"{found.url}?without_archive=true&confirm=one"
        wait_for(lambda: api.delete(url).is_success, "the workspace to be deleted")


@pytest.fixture
def workspace(system: System) -> Iterator[Workspace]:
    with running_workspace(system) as found:
        yield found
