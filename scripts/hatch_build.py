"""Build hook that puts the built dashboard into the wheel."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DashboardHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable" and (Path(self.root) / "web" / "dist").is_dir():
            build_data["force_include"]["web/dist"] = "codehub/dashboard"
