"""Requests about one exec of the Docker Engine. Standard library only (see `engine_http`)."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codehub.runtimes.docker.engine_http import EngineAnswer, EngineGone, EngineHttp
from codehub.runtimes.exec_request import CommandRefused, ExecRequest, TerminalSize

HOME = "/home/coder"
_TERMINAL = {"TERM": "xterm-256color"}
_DETACH_KEYS = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-_,ctrl-@,ctrl-^"
"""The engine cannot be told to have no keys that detach a terminal. By default it holds back Ctrl-P."""


@dataclass(frozen=True)
class ExecInspection:
    """What the engine knows of an exec."""

    is_running: bool
    """Also while it is being started."""
    exit_code: int | None
    pid: int
    """0 before it has started."""


@dataclass(frozen=True)
class EngineExec:
    """An exec that the engine has created."""

    engine: EngineHttp
    id: str

    @classmethod
    def create(cls, engine: EngineHttp, container_id: str, request: ExecRequest) -> EngineExec:
        try:
            answer = engine.request("POST", f"/containers/{container_id}/exec", exec_options(request))
        except OSError as error:
            raise CommandRefused(f"{error}; no command was started") from error
        if not answer.succeeded:
            raise CommandRefused(f"the Docker engine did not start the command: {answer.message}")
        return cls(engine, str(answer.json()["Id"]))

    def start(self, size: TerminalSize | None) -> socket.socket | EngineAnswer:
        """Start it, and return its stream or the engine's refusal."""
        console = {} if size is None else {"ConsoleSize": [size.rows, size.cols]}
        options = {"Detach": False, "Tty": size is not None, **console}
        return self.engine.open_stream(f"/exec/{self.id}/start", options)

    def inspect(self) -> ExecInspection:
        """Inspect it. Raise EngineGone also if the engine has forgotten it, or its container is gone."""
        answer = self.engine.request("GET", f"/exec/{self.id}/json")
        if not answer.succeeded:
            raise EngineGone(answer.message)
        found = answer.json()
        return ExecInspection(bool(found["Running"]), found.get("ExitCode"), int(found.get("Pid") or 0))

    def resize(self, size: TerminalSize) -> None:
        answer = self.engine.request("POST", f"/exec/{self.id}/resize?h={size.rows}&w={size.cols}")
        if not answer.succeeded:
            raise OSError(answer.message)


def has_input(request: ExecRequest) -> bool:
    return request.stdin or request.tty is not None


def exec_options(request: ExecRequest) -> dict[str, Any]:
    """Return the body of `POST /containers/{id}/exec`.

    It names no user and no privileges: those of the container's first process apply.
    """
    terminal = {} if request.tty is None else _TERMINAL
    console = {} if request.tty is None else {"ConsoleSize": [request.tty.rows, request.tty.cols]}
    return {
        "AttachStdin": has_input(request),
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": request.tty is not None,
        "DetachKeys": _DETACH_KEYS,
        "Cmd": request.command,
        "Env": [f"{name}={value}" for name, value in {**terminal, **request.env}.items()],
        "WorkingDir": str(Path(HOME, request.cwd)),
        **console,
    }
