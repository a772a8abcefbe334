"""The images that workspaces are made from: the type, and the built-in list.

`codehub.images_file` reads further images from IMAGES_FILE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from codehub.domain.workspace_names import as_argument

Activity = Literal["vscode", "any"]
Seccomp = Literal["default", "unconfined"]

PLACEHOLDERS: Final = frozenset({"socket", "home", "workspace_id", "name"})
"""Placeholders of a process command."""
MOST_PIDS: Final = 4_194_304
"""Limit of the kernel."""


@dataclass(frozen=True, slots=True)
class Image:
    """Recipe of a workspace's container.

    A runtime does not offer an image whose entry for it (`docker`, `process`) is None.
    """

    name: str
    title: str
    docker: str | None
    process: tuple[str, ...] | None
    ready_path: str
    port: int
    cpus: float
    memory_bytes: int
    pids: int
    activity: Activity
    default: bool
    home_files: Mapping[str, str] = field(default_factory=dict)
    """Files of a new home: contents by relative path. Existing homes are never changed."""
    seccomp: Seccomp = "default"
    """Whether system calls that hardly any program needs are denied (ADR 0027)."""
    disk_bandwidth: int | None = None
    """Bytes per second that may be read from the disk of the home, and as many written."""


VSCODE_SETTINGS = """\
// CodeHub wrote these settings once, when it made this home. Change them as you like.
{
  "chat.disableAIFeatures": true,
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "workbench.startupEditor": "none"
}
"""
"""code-server has no defaults below the user's settings, so these are the first user settings."""

BUILT_IN: tuple[Image, ...] = (
    Image(
        name="code-server",
        title="VS Code",
        docker="codercom/code-server:4.139.1",
        process=(
            "code-server",
            "--socket",
            "{socket}",
            "--auth",
            "none",
            "--disable-telemetry",
            "--disable-update-check",
            "--disable-workspace-trust",
            "--disable-getting-started-override",
            "--app-name={name}",
            "{home}",
        ),
        ready_path="/healthz",
        port=8080,
        cpus=2.0,
        memory_bytes=2 << 30,
        pids=1024,
        activity="vscode",
        default=True,
        home_files={".local/share/code-server/User/settings.json": VSCODE_SETTINGS},
    ),
)


def expand_command(
    command: tuple[str, ...], *, socket: str, home: str, workspace_id: str, name: str
) -> tuple[str, ...]:
    """Return the command with its placeholders filled in."""
    shown = as_argument(name, workspace_id)
    return tuple(
        part.format(socket=socket, home=home, workspace_id=workspace_id, name=shown) for part in command
    )
