"""Activity: recognises what a person does, as opposed to an open tab (ADR 0004)."""

import re
import time
from dataclasses import dataclass
from typing import Final

from codehub.domain.images import Activity
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.websocket_frames import FrameReader

CAPTURE: Final = 256 * 1024
HEADER: Final = 13
"""Bytes of a VS Code message's header: its type, two numbers, and the length of its body.

Keepalives and acknowledgements have no body.
"""
PRESENCE_LIMIT: Final = 1800.0
"""How long presence counts without another sign. An endless progress notification reports it, too."""
SILENCE: Final = 20.0
"""How long a reported presence counts without a keepalive.

A window in front sends one every 5 s. If none arrives, the window is hidden, where the browser runs its
timers once a minute, or its machine sleeps. Neither reports the end of presence in time. Other messages
prove nothing: a hidden window still answers the server.
"""
_KEEPALIVE: Final = 9
_MESSAGES: Final = 32
"""How many messages of a frame are read. A client sends one, or the few of one turn of its loop."""
_TAIL: Final = 64
_NAME_MARK: Final = b"$"
"""Occurs in every name below, so that most messages need no further search."""

_TERMINAL = re.compile(
    rb"remoteterminal.{0,4}?\$input|\$acceptTerminalInteraction|\$shellExecutionData", re.DOTALL
)
_EDITOR = re.compile(
    rb"\$acceptModelChanged|\$acceptEditorPropertiesChanged|\$participateInSave|\$acceptModelSaved"
    rb"|\$acceptDocumentsAndEditorsDelta|\$provideCompletionItems"
)
_PRESENCE = re.compile(rb"\$onDidChangeWindowActive.{0,16}?\[(true|false)", re.DOTALL)
_EXTENSION_HOST: Final = b'"desiredConnectionType":2'
"""The socket that reports presence. A window that has just loaded is active, and reports only the end."""
PORT_PATHS: Final = (b"/proxy/", b"/absproxy/")
"""Paths of a workspace behind which a program listens on a port, and not the IDE."""


class ActivityRecorder:
    """Record of when each workspace was last used, until the next flush."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._inspectors: set[VsCodeInspector] = set()

    def record_use(self, workspace_id: str) -> None:
        self._seen[workspace_id] = time.time()

    def record_request(self, head: RequestHead, target: bytes, kind: Activity, workspace_id: str) -> None:
        """Record a request that is activity. VS Code loads assets and pings without a person."""
        if head.wants_websocket:
            return
        if kind == "any" or head.is_navigation or not head.is_safe or target.startswith(PORT_PATHS):
            self.record_use(workspace_id)

    def make_inspectors(
        self, kind: Activity, workspace_id: str, *, freshly_loaded: bool
    ) -> "TunnelInspectors":
        if not workspace_id:
            return TunnelInspectors()
        if kind == "vscode":
            inspector = VsCodeInspector(self, workspace_id, freshly_loaded=freshly_loaded)
            self._inspectors.add(inspector)
            return TunnelInspectors(FrameReader(inspector.message, CAPTURE), vscode=inspector)

        def record_activity(_piece: bytes, _begins: bool) -> None:
            self.record_use(workspace_id)

        return TunnelInspectors(FrameReader(record_activity, 0), FrameReader(record_activity, 0))

    def forget(self, inspector: "VsCodeInspector") -> None:
        self._inspectors.discard(inspector)

    def collect(self) -> dict[str, float]:
        """Return the uses since the last call."""
        for inspector in self._inspectors:
            if inspector.is_present():
                self.record_use(inspector.workspace_id)
        seen, self._seen = self._seen, {}
        return seen


class VsCodeInspector:
    """Detector of signs of a person in one VS Code socket, from client to server.

    Messages of the editor count unless the IDE reported that the window is inactive: files that change on
    disk, and extensions that edit, cause the same ones. Terminals always count, and so does their output.
    """

    def __init__(self, recorder: ActivityRecorder, workspace_id: str, *, freshly_loaded: bool) -> None:
        self.workspace_id = workspace_id
        self._freshly_loaded = freshly_loaded
        self._recorder = recorder
        self._present: bool | None = None
        self._counted_at = 0.0
        self._keepalive_at = 0.0
        self._tail = b""
        self._messages = _MessageWalk()

    def message(self, piece: bytes, begins: bool) -> None:
        """Read the next piece of a frame, or its first one."""
        if begins:
            self._messages = _MessageWalk()
        if self._messages.finds_keepalive(piece):
            self._note_keepalive()
        if begins and len(piece) <= HEADER:
            return
        data = self._tail + piece
        self._tail = data[-_TAIL:]
        if _NAME_MARK not in data and not self._freshly_loaded:
            return
        if self._freshly_loaded and _EXTENSION_HOST in data:
            self._freshly_loaded = False
            self._become_present()
        for found in _PRESENCE.finditer(data):
            if found[1] == b"true":
                self._become_present()
            else:
                self._present = False
        if _TERMINAL.search(data) or (self._present is not False and _EDITOR.search(data)):
            self._count()

    def _become_present(self) -> None:
        self._present = True
        self._keepalive_at = time.monotonic()
        self._count()

    def _note_keepalive(self) -> None:
        now = time.monotonic()
        if self._present and now - self._keepalive_at > SILENCE:
            self._present = None
        self._keepalive_at = now

    def is_present(self) -> bool:
        if self._present is not True:
            return False
        now = time.monotonic()
        return now - self._keepalive_at < SILENCE and now - self._counted_at < PRESENCE_LIMIT

    def close(self) -> None:
        self._recorder.forget(self)

    def _count(self) -> None:
        self._tail = b""  # do not find the same name again with the next message
        self._counted_at = time.monotonic()
        self._recorder.record_use(self.workspace_id)


class _MessageWalk:
    """Iterator over the messages of one frame, which arrives in pieces, to the first keepalive."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._at = 0
        """The position of the next message in the next piece."""
        self._left = _MESSAGES

    def finds_keepalive(self, piece: bytes) -> bool:
        at, size = self._at, len(piece)
        while self._left and at + HEADER <= size:
            self._left -= 1
            if piece[at] == _KEEPALIVE:
                self._left = 0
                return True
            at += HEADER + int.from_bytes(piece[at + 9 : at + HEADER])
        if at < size:
            self._left = 0  # a header that two pieces share is not read
        self._at = at - size
        return False


@dataclass(frozen=True, slots=True)
class TunnelInspectors:
    """Inspectors of both directions of one tunnel, if any."""

    from_client: FrameReader | None = None
    from_upstream: FrameReader | None = None
    vscode: VsCodeInspector | None = None

    def close(self) -> None:
        if self.vscode is not None:
            self.vscode.close()
