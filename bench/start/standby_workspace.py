"""Workspace of the real system that is started from STANDBY repeatedly."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from bench.start.baselines import IMAGE
from tests.services import System
from tests.waiting import wait_for

LIMIT_SECONDS = 120.0


class StandbyWorkspace:
    """Workspace that returns to STANDBY after each measurement."""

    def __init__(self, system: System) -> None:
        self._client = system.client()
        workspace = self._client.post("/api/v1/workspaces", json={"name": "bench"}).raise_for_status().json()
        self.workspace_id: str = workspace["id"]
        wait_for(lambda: self._phase() == "RUNNING", "the first start", every=0.1)
        self._go_to_standby()

    def measure(self) -> float:
        """Return the seconds from the request until the IDE responds through the gateway.

        An event reports that the workspace is RUNNING, as in the dashboard.
        """
        with self._client.stream("GET", "/api/v1/events", timeout=LIMIT_SECONDS) as stream:
            events = _workspaces_of_events(stream)
            next(events)
            began = time.perf_counter()
            self._request("RUNNING")
            while not any(item["phase"] == "RUNNING" for item in next(events)):
                assert time.perf_counter() - began < LIMIT_SECONDS, "the workspace does not start"
            address = f"/w/{self.workspace_id}{IMAGE.ready_path}"
            self._client.get(address, headers={"Accept": "*/*"}).raise_for_status()
            return time.perf_counter() - began

    def end(self) -> None:
        self._go_to_standby()

    def _go_to_standby(self) -> None:
        self._request("STANDBY")
        wait_for(lambda: self._phase() == "STANDBY", "STANDBY", every=0.1)

    def _request(self, desired: str) -> None:
        body = {"desired_state": desired}
        self._client.patch(f"/api/v1/workspaces/{self.workspace_id}", json=body).raise_for_status()

    def _phase(self) -> str:
        workspace = self._client.get(f"/api/v1/workspaces/{self.workspace_id}").raise_for_status().json()
        return str(workspace["phase"]) if workspace["operation"] == "NONE" else "in transition"


def _workspaces_of_events(stream: httpx.Response) -> Iterator[list[dict[str, Any]]]:
    """Yield the workspaces of each event."""
    for line in stream.iter_lines():
        if line.startswith("data:"):
            event = json.loads(line.removeprefix("data:"))
            yield event.get("items", [event] if "phase" in event else [])
