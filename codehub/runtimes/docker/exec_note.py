"""Note beside the record of a command that names its processes, should its monitor be killed.

Standard library only (see `engine_http`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from codehub.host.processes import ProcessId
from codehub.runtimes.docker.container_process import kill_tree, process_in
from codehub.runtimes.docker.engine_http import EngineHttp
from codehub.runtimes.exec_directory import ExecDirectory

_FILE = "engine-exec"


@dataclass(frozen=True)
class ExecNote:
    """The exec of the engine that runs a command."""

    container_id: str
    exec_id: str
    process: ProcessId | None = None
    """Its process, once that is known."""

    def write(self, directory: ExecDirectory) -> None:
        path = _path(directory)
        staged = path.with_name(f".{_FILE}")
        staged.write_text(json.dumps(asdict(self)))
        staged.replace(path)

    def end_processes(self, engine: EngineHttp) -> None:
        """Kill what the command left. Raise OSError if the engine must say what that is, and does not."""
        process = self.process or self._find_process(engine)
        if process is not None and process_in(self.container_id, process.pid) == process:
            kill_tree(process)

    def _find_process(self, engine: EngineHttp) -> ProcessId | None:
        found = engine.request("GET", f"/exec/{self.exec_id}/json")  # 404 if the engine has forgotten it
        return process_in(self.container_id, int(found.json().get("Pid") or 0))


def read(directory: ExecDirectory) -> ExecNote | None:
    """Return the note, or None if the command has ended, or is about to start."""
    try:
        raw = json.loads(_path(directory).read_text())
        process = raw.pop("process")
        return ExecNote(**raw, process=None if process is None else ProcessId(**process))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def remove(directory: ExecDirectory) -> None:
    _path(directory).unlink(missing_ok=True)


def _path(directory: ExecDirectory) -> Path:
    return directory.path / _FILE
