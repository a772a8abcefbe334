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
"""VS Code's messages begin with 13 bytes: what they are, two numbers, and how many bytes follow.
Keepalives and acknowledgements are no more than that.
"""
PRESENCE_LIMIT: Final = 1800.0
"""Presence without any other sign is believed for so long: an endless progress notification holds it too."""
SILENCE: Final = 20.0
"""A window with somebody at it sends a keepalive every 5 s. Where none comes for longer, it is behind others,
where the browser lets its clocks tick once a minute, or its machine sleeps: neither says in time that nobody
is there, so what it said before is no longer believed. What else it sends tells nothing: hidden, it answers
the server as before.
"""
_KEEPALIVE: Final = 9
_MESSAGES: Final = 32
"""A frame has one message, or the few of one turn of the client's loop. Only who means harm sends more."""
_TAIL: Final = 64
_SIGIL: Final = b"$"
"""Every name that is looked for below begins with it, or ends in one that does."""

_TERMINAL = re.compile(
    rb"remoteterminal.{0,4}?\$input|\$acceptTerminalInteraction|\$shellExecutionData", re.DOTALL
)
_EDITOR = re.compile(
    rb"\$acceptModelChanged|\$acceptEditorPropertiesChanged|\$participateInSave|\$acceptModelSaved"
    rb"|\$acceptDocumentsAndEditorsDelta|\$provideCompletionItems"
)
_PRESENCE = re.compile(rb"\$onDidChangeWindowActive.{0,16}?\[(true|false)", re.DOTALL)
_EXTENSION_HOST: Final = b'"desiredConnectionType":2'
"""The socket that reports presence: a window that has just loaded is active, and says only when that ends."""
PORT_PATHS: Final = (b"/proxy/", b"/absproxy/")


class ActivityRecorder:
    """When each workspace was last used, until the next flush."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._watched: set[VsCodeInspector] = set()

    def touch(self, workspace_id: str) -> None:
        self._seen[workspace_id] = time.time()

    def request(self, head: RequestHead, target: bytes, kind: Activity, workspace_id: str) -> None:
        """VS Code fetches assets and pings by itself; pages, writes and forwarded ports are a person's."""
        if head.wants_websocket:
            return
        if kind == "any" or head.is_navigation or not head.is_safe or target.startswith(PORT_PATHS):
            self.touch(workspace_id)

    def inspectors(self, kind: Activity, workspace_id: str, *, freshly_loaded: bool) -> "Inspectors":
        if not workspace_id:
            return Inspectors()
        if kind == "vscode":
            inspector = VsCodeInspector(self, workspace_id, freshly_loaded=freshly_loaded)
            self._watched.add(inspector)
            return Inspectors(FrameReader(inspector.message, CAPTURE), vscode=inspector)

        def count(_piece: bytes, _begins: bool) -> None:
            self.touch(workspace_id)

        return Inspectors(FrameReader(count, 0), FrameReader(count, 0))

    def unwatch(self, inspector: "VsCodeInspector") -> None:
        self._watched.discard(inspector)

    def collect(self) -> dict[str, float]:
        """All that was seen since the last time."""
        for inspector in self._watched:
            if inspector.is_present():
                self.touch(inspector.workspace_id)
        seen, self._seen = self._seen, {}
        return seen


class VsCodeInspector:
    """Reads one VS Code socket, client to server, for signs of a person.

    The editor's own messages count unless the IDE has said that nobody is there: a file that changes on disk,
    or an extension that edits, sends the same ones. The terminal counts always, its output included.
    """

    def __init__(self, recorder: ActivityRecorder, workspace_id: str, *, freshly_loaded: bool) -> None:
        self.workspace_id = workspace_id
        self._freshly_loaded = freshly_loaded
        self._recorder = recorder
        self._present: bool | None = None
        self._sign_at = 0.0
        self._heard_at = 0.0
        self._tail = b""
        self._messages = _MessageWalk()

    def message(self, piece: bytes, begins: bool) -> None:
        """Read the next piece of a frame, or its first one."""
        if begins:
            self._messages = _MessageWalk()
        if self._messages.finds_keepalive(piece):
            self._hear()
        if begins and len(piece) <= HEADER:
            return
        data = self._tail + piece
        self._tail = data[-_TAIL:]
        if _SIGIL not in data and not self._freshly_loaded:
            return
        if self._freshly_loaded and _EXTENSION_HOST in data:
            self._freshly_loaded = False
            self._come()
        for found in _PRESENCE.finditer(data):
            if found[1] == b"true":
                self._come()
            else:
                self._present = False
        if _TERMINAL.search(data) or (self._present is not False and _EDITOR.search(data)):
            self._sign()

    def _come(self) -> None:
        self._present = True
        self._heard_at = time.monotonic()
        self._sign()

    def _hear(self) -> None:
        now = time.monotonic()
        if self._present and now - self._heard_at > SILENCE:
            self._present = None
        self._heard_at = now

    def is_present(self) -> bool:
        if self._present is not True:
            return False
        now = time.monotonic()
        return now - self._heard_at < SILENCE and now - self._sign_at < PRESENCE_LIMIT

    def close(self) -> None:
        self._recorder.unwatch(self)

    def _sign(self) -> None:
        self._tail = b""  # what was found is not found again in the next message
        self._sign_at = time.monotonic()
        self._recorder.touch(self.workspace_id)


class _MessageWalk:
    """Walk over the messages of one frame, which comes in pieces, to the first keepalive."""

    __slots__ = ("_at", "_left")

    def __init__(self) -> None:
        self._at = 0
        """Where the next message begins in the next piece."""
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
class Inspectors:
    """What reads along with one tunnel, if anything."""

    from_client: FrameReader | None = None
    from_upstream: FrameReader | None = None
    vscode: VsCodeInspector | None = None

    def close(self) -> None:
        if self.vscode is not None:
            self.vscode.close()
