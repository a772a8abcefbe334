"""Client of one workspace of a running system."""

from pathlib import Path
from typing import Any

import httpx

from tests.services import System
from tests.waiting import wait_for


class WorkspaceClient:
    """Workspace that this client has created, with its API, its home and its timeline."""

    def __init__(
        self, system: System, image: str = "tiny", state: str = "RUNNING", client: httpx.Client | None = None
    ) -> None:
        self._system = system
        self.client = client or system.client()
        body = {"name": image, "image_ref": image, "desired_state": state}
        answer = self.client.post("/api/v1/workspaces", json=body)
        assert answer.status_code == 201, answer.text
        self.id: str = answer.json()["id"]

    @property
    def home(self) -> Path:
        """Return the path of the home on this machine."""
        [home] = self._system.data_dir.glob(f"volumes/users/*/workspaces/{self.id}/home")
        return home

    def workspace(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/api/v1/workspaces/{self.id}").json()
        return found

    def timeline_events(self) -> list[str]:
        items = self.client.get(f"/api/v1/workspaces/{self.id}/timeline").json()["items"]
        return [item["event"] for item in items]

    def set_desired_state(self, state: str) -> None:
        answer = self.client.patch(f"/api/v1/workspaces/{self.id}", json={"desired_state": state})
        assert answer.status_code == 200, answer.text

    def wait_for_phase(self, phase: str) -> None:
        """Wait until the workspace is at rest in the phase; fail on ERROR."""

        def is_reached() -> bool:
            now = self.workspace()
            assert now["phase"] != "ERROR", now
            return (now["phase"], now["operation"]) == (phase, "NONE")

        wait_for(is_reached, f"{phase}, at {self.workspace()}")

    def move_to(self, state: str) -> None:
        self.set_desired_state(state)
        self.wait_for_phase(state)
