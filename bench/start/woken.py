"""A workspace of the real system that is woken again and again."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from bench.start.by_hand import IMAGE
from tests.services import System
from tests.waiting import wait_for

LIMIT_SECONDS = 120.0


class Woken:
    """One workspace with one home, in STANDBY between the measurements."""

    def __init__(self, system: System) -> None:
        self._client = system.client()
        made = self._client.post("/api/v1/workspaces", json={"name": "bench"}).raise_for_status().json()
        self.workspace_id: str = made["id"]
        wait_for(lambda: self._phase() == "RUNNING", "the first start", every=0.1)
        self._sleep()

    def measure(self) -> float:
        """Seconds from the wish until the IDE has answered through the gateway, told of by an event."""
        with self._client.stream("GET", "/api/v1/events", timeout=LIMIT_SECONDS) as stream:
            events = _workspaces(stream)
            next(events)
            began = time.perf_counter()
            self._wish("RUNNING")
            while not any(item["phase"] == "RUNNING" for item in next(events)):
                assert time.perf_counter() - began < LIMIT_SECONDS, "the workspace does not come up"
            address = f"/w/{self.workspace_id}{IMAGE.ready_path}"
            self._client.get(address, headers={"Accept": "*/*"}).raise_for_status()
            return time.perf_counter() - began

    def end(self) -> None:
        self._sleep()

    def _sleep(self) -> None:
        self._wish("STANDBY")
        wait_for(lambda: self._phase() == "STANDBY", "STANDBY", every=0.1)

    def _wish(self, desired: str) -> None:
        body = {"desired_state": desired}
        self._client.patch(f"/api/v1/workspaces/{self.workspace_id}", json=body).raise_for_status()

    def _phase(self) -> str:
        seen = self._client.get(f"/api/v1/workspaces/{self.workspace_id}").raise_for_status().json()
        return str(seen["phase"]) if seen["operation"] == "NONE" else "on its way"


def _workspaces(stream: httpx.Response) -> Iterator[list[dict[str, Any]]]:
    """The workspaces that each event speaks of."""
    for line in stream.iter_lines():
        if line.startswith("data:"):
            told = json.loads(line.removeprefix("data:"))
            yield told.get("items", [told] if "phase" in told else [])
