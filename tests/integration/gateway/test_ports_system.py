"""Ports of a workspace on a complete `codehub up`, with an app in a real sandbox."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.coordinator.conftest import IDE
from tests.services import System
from tests.waiting import PATIENCE, wait_for

NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document", "Sec-Fetch-Site": "none"}
APP_PORT = 3000
START = f'env > "$HOME/environment"; /usr/bin/python3 -m http.server -b 127.0.0.1 {APP_PORT} & exec "$@"'
COMMAND = ["/bin/sh", "-c", START, "sh", "/usr/bin/python3", "-c", IDE, "{socket}"]
IMAGES = f"""
[[image]]
name = "with-an-app"
ready_path = "/"
process = {json.dumps(COMMAND)}
"""


class Owner:
    """The owner's browser, which resolves `*.localhost` and keeps one cookie for each host."""

    def __init__(self, system: System) -> None:
        self.api = system.client()
        self._direct = f"http://127.0.0.1:{system.port}"
        self._cookies: dict[str, str] = {}
        made = self.api.post("/api/v1/workspaces", json={"name": "one"})
        assert made.status_code == 201, made.text
        self.id = made.json()["id"]
        self.platform = f"localhost:{system.port}"

    def host(self, port: int) -> str:
        return f"{port}--{self.id}.{self.platform}"

    def is_in(self, phase: str) -> bool:
        workspace = self.api.get(f"/api/v1/workspaces/{self.id}").json()
        assert workspace["error_message"] is None, workspace
        return workspace["phase"] == phase and workspace["operation"] == "NONE"

    def get(self, host: str, path: str, **headers: str) -> httpx.Response:
        sent = {"Host": host, "Cookie": self._cookies.get(host, ""), **headers}
        answer = httpx.get(f"{self._direct}{path}", headers=sent, timeout=PATIENCE)
        if "set-cookie" in answer.headers:
            self._cookies[host] = answer.headers["set-cookie"].split(";")[0]
        return answer

    def navigate(self, port: int, path: str = "/") -> httpx.Response:
        """Navigate to a port's URL, and follow all redirects."""
        answer = self.get(self.host(port), path, **NAVIGATION)
        while answer.is_redirect:
            url = httpx.URL(answer.headers["location"])
            host, target = url.netloc.decode(), url.raw_path.decode()
            if host == self.platform:
                answer = self.api.get(target, headers=NAVIGATION)
            else:
                answer = self.get(host, target, **NAVIGATION)
        return answer


@pytest.fixture
def system(make_system: Callable[..., System], tmp_path: Path) -> System:
    for program in ("bwrap", "slirp4netns"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: apt-get install bubblewrap slirp4netns")
    (tmp_path / "images.toml").write_text(IMAGES)
    return make_system(IMAGES_FILE=str(tmp_path / "images.toml"), GATEWAY_WORKERS="1").start()


def test_only_the_owner_opens_an_app_and_no_port_reaches_the_host(system: System) -> None:
    owner = Owner(system)
    wait_for(lambda: owner.is_in("RUNNING"), "the workspace to run")
    wait_for(lambda: "Directory listing" in owner.navigate(APP_PORT).text, "the app to listen")
    assert (
        httpx.get(system.base_url, headers={"Host": owner.host(APP_PORT)}, timeout=PATIENCE).status_code
        == 401
    )

    with socket.create_server(("127.0.0.1", 0)) as host_server:
        port = host_server.getsockname()[1]
        answer = owner.navigate(port)
        assert answer.status_code == 502 and f"Nothing listens on port {port}" in answer.text
        host_server.settimeout(0)
        with pytest.raises(BlockingIOError):
            host_server.accept()

    stopped = owner.api.patch(f"/api/v1/workspaces/{owner.id}", json={"desired_state": "STANDBY"})
    assert stopped.status_code == 200
    wait_for(lambda: owner.is_in("STANDBY"), "the workspace to stop")
    assert owner.get(owner.host(APP_PORT), "/").status_code == 503
    assert not list((system.data_dir / "runtime").rglob("net.sock"))
    assert "on its way" in owner.navigate(APP_PORT).text
    variable = f"VSCODE_PROXY_URI=http://{{{{port}}}}--{owner.id}.localhost:{system.port}/\n"
    wait_for(lambda: variable in owner.navigate(APP_PORT, "/environment").text, "the app to be back")
