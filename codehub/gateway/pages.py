"""Pages of the gateway's own: small, in the user's language, with everything escaped."""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template
from typing import Final
from urllib.parse import urlencode

from codehub.database.gateway_queries import StatusPageData
from codehub.domain.allowed_changes import RecoveryOption, recovery_options
from codehub.domain.backends import left_alone_message
from codehub.domain.disk import HomeRecord, size_text
from codehub.domain.problems import Problem
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.gateway.config import Origins
from codehub.gateway.cookies import cookie_values
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.page_texts import TEXTS, language_of

_ENTRANCE_LENGTH: Final = len("/w/") + 26
_FILES: Final = Path(__file__).parent / "pages"


_REFRESH: Final = '<noscript><meta http-equiv="refresh" content="2"></noscript>'
"""For a page that changes by itself; where scripts run, the script looks more closely."""


@dataclass(frozen=True)
class PageAction:
    """A button that asks the API for something, and then loads the page again.

    Where no script runs it is a form, which asks the gateway for `wish`.
    """

    label: str
    method: str
    path: str
    body: Mapping[str, str]
    wish: Mapping[str, str]
    primary: bool = True

    def html(self, place: str) -> str:
        """As it stands in the page at this path."""
        kind = "primary" if self.primary else "plain"
        body = escape(json.dumps(self.body))
        entrance, rest = place[:_ENTRANCE_LENGTH], place[_ENTRANCE_LENGTH:]
        action = f"{entrance}/.codehub/do?{urlencode({**self.wish, 'to': rest})}"
        return (
            f'<form method="post" action="{escape(action)}">'
            f'<button class="{kind}" data-method="{self.method}" data-path="{escape(self.path)}" '
            f'data-body="{body}">{escape(self.label)}</button></form>'
        )


class Pages:
    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._template = Template((_FILES / "page.html").read_text(encoding="utf-8"))
        self._style = (_FILES / "page.css").read_text(encoding="utf-8")
        self._script = (_FILES / "page.js").read_text(encoding="utf-8")

    def loading(self, head: RequestHead, workspace: Workspace, home: HomeRecord | None = None) -> Reply:
        page = _Page(head, "loading", name=workspace.name)
        step = workspace.operation.value if workspace.operation is not Operation.NONE else "WAITING"
        step_line = f'<p class="soft" id="step" aria-live="polite">{page.say(step)}</p>'
        waits = f"<noscript>{_cause(workspace.error_message)}</noscript>" if workspace.error_message else ""
        full = page.room(home) if home is not None and home.size.is_full else ""
        details = f"{_progress(workspace)}{step_line}{waits}{full}"
        words = {
            name: page.say(name)
            for name in ("WAITING", *(item.value for item in Operation if item != "NONE"))
        }
        data = {"poll": _api(workspace), "words": words}
        return self._reply(200, page, details=details, data=data, refresh=True)

    def archived(self, head: RequestHead, workspace: Workspace) -> Reply:
        page = _Page(head, "archived", name=workspace.name)
        actions = [_start(page.say("archived.button"), workspace)]
        return self._reply(502, page, details=_cause(workspace.error_message), actions=actions)

    def pending(self, head: RequestHead, workspace: Workspace) -> Reply:
        page = _Page(head, "pending", name=workspace.name)
        actions = [_start(page.say("pending.button"), workspace)]
        return self._reply(502, page, details=_cause(workspace.error_message), actions=actions)

    def stopped(self, head: RequestHead, situation: StatusPageData, cause: str) -> Reply:
        """Show why a workspace does not run, and start it only when its owner asks for that."""
        workspace = situation.workspace
        page = _Page(head, "stopped", name=workspace.name)
        details = f"{_cause(cause)}{page.room(situation.home)}"
        actions = [_start(page.say("stopped.button"), workspace)]
        return self._reply(502, page, details=details, actions=actions)

    def left_alone(self, head: RequestHead, workspace: Workspace) -> Reply:
        """The page of a workspace of another runtime or storage, which no visit wakes."""
        page = _Page(head, "backend", name=workspace.name)
        details = f'<p class="cause">{escape(left_alone_message(workspace) or "")}</p>'
        return self._reply(502, page, details=details, again=True)

    def error(self, head: RequestHead, situation: StatusPageData) -> Reply:
        workspace = situation.workspace
        page = _Page(head, "error", name=workspace.name)
        cause = workspace.error_message or page.say("error.unknown")
        details = _cause(cause)
        if situation.home is not None and situation.home.size.is_full:
            details += page.room(situation.home)
        recover = f"{_api(workspace)}/recover"
        ways = recovery_options(workspace)
        actions = [
            PageAction(page.say(f"error.{way}"), "POST", recover, {}, {"wish": "recover"})
            for way in ways
            if way in (RecoveryOption.LOOK_AGAIN, RecoveryOption.HOME)
        ]
        if RecoveryOption.EMPTY not in ways:
            return self._reply(502, page, details=details, actions=actions, refresh=not ways)
        rows = [
            page.row(
                page.say("lost.archive").format(date=f"{archive.created_at:%Y-%m-%d %H:%M} UTC"),
                _recover(
                    page.say("lost.restore"),
                    recover,
                    {"from": "archive", "archive_op_id": archive.archive_op_id},
                ),
            )
            for archive in situation.archives
        ]
        details += f"<p>{escape(page.say('error.choose' if actions else 'lost.message'))}</p>{_list(rows)}"
        actions.append(_recover(page.say("lost.empty"), recover, {"from": "empty"}, primary=False))
        return self._reply(502, page, details=details, actions=actions)

    def over_the_limit(self, head: RequestHead, why: str, counted: list[Workspace], place: str = "") -> Reply:
        """`place` is the path of the page that led here, when it is not the one that was asked for."""
        page = _Page(head, "limit", place=place)
        broken = [item for item in counted if item.phase is Phase.ERROR and item.request is None]
        going = [
            item for item in counted if item.desired_state is not DesiredState.RUNNING and item not in broken
        ]
        staying = [item for item in counted if item not in broken and item not in going]
        rows = [_note(item.name, page.say("limit.going")) for item in going]
        rows += [_note(item.name, page.say("limit.broken")) for item in broken]
        rows += [page.row(item.name, _stop(page.say("limit.stop"), item)) for item in staying]
        page.message = page.say("limit.message" if rows else "limit.others")
        details = f'<p class="soft">{escape(why)}</p>{_list(rows)}'
        data = {"reload": bool(going)}
        return self._reply(502, page, details=details, data=data, again=True, refresh=bool(going))

    def refused(self, head: RequestHead, problem: Problem, place: str) -> Reply:
        """A wish that could not be fulfilled, and the way back."""
        page = _Page(head, "refused", place=place)
        page.message = problem.message
        return self._reply(problem.status, page, again=True)

    def missing(self, head: RequestHead) -> Reply:
        return self._reply(404, _Page(head, "missing"))

    def forbidden(self, head: RequestHead) -> Reply:
        return self._reply(403, _Page(head, "forbidden"))

    def unreachable(self, head: RequestHead, *, for_workspace: bool) -> Reply:
        return self._reply(502, _Page(head, "gone" if for_workspace else "down"), again=True)

    def two_sessions(self, head: RequestHead) -> Reply:
        page = _Page(head, "sessions")
        login = f"{self._origins.platform}/login"
        return self._reply(400, page, details=_link(login, page.say("sessions.button")))

    def too_many_cookies(self, head: RequestHead) -> Reply:
        return self._reply(431, _Page(head, "cookies"), again=True)

    def token_in_address(self, head: RequestHead) -> Reply:
        return self._reply(400, _Page(head, "token"))

    def other_browser(self, head: RequestHead, entrance: str) -> Reply:
        """Refuse a link that was handed out to another browser, and offer the entrance instead."""
        page = _Page(head, "ticket", place=entrance)
        page.message = page.message.format(host=head.host)
        return self._reply(403, page, details=_link(entrance, page.say("ticket.button")))

    def no_port(self, head: RequestHead) -> Reply:
        return self._reply(404, _Page(head, "noport"))

    def ports_are_off(self, head: RequestHead) -> Reply:
        return self._reply(502, _Page(head, "ports"))

    def nothing_listens(self, head: RequestHead, port: int, *, in_container: bool) -> Reply:
        page = _Page(head, "silent")
        page.heading = page.heading.format(port=port)
        details = f"<p>{escape(page.say('silent.container'))}</p>" if in_container else ""
        return self._reply(502, page, details=details, data={"knock": True}, again=True)

    def unavailable(self, head: RequestHead) -> Reply:
        return self._reply(503, _Page(head, "down"), again=True, retry=True)

    def no_space(self, head: RequestHead) -> Reply:
        """The page of a visit for which the database or Redis had no room to write."""
        return self._reply(507, _Page(head, "full"), again=True, retry=True)

    def misdirected(self, head: RequestHead) -> Reply:
        page = _Page(head, "elsewhere")
        page.message = page.say("elsewhere.message").format(url=self._origins.platform)
        return self._reply(421, page)

    def _reply(
        self,
        status: int,
        page: "_Page",
        *,
        details: str = "",
        actions: Iterable[PageAction] = (),
        data: Mapping[str, object] | None = None,
        again: bool = False,
        retry: bool = False,
        refresh: bool = False,
    ) -> Reply:
        nonce = secrets.token_urlsafe(16)
        links = f'<p><a href="{escape(page.again)}">{escape(page.say("again"))}</a></p>' if again else ""
        spoken = {"unreachable": page.say("unreachable"), **(data or {})}
        body = self._template.substitute(
            lang=page.language,
            title=f"{escape(page.heading)} · CodeHub",
            nonce=nonce,
            style=self._style,
            script=self._script,
            name=escape(page.name),
            heading=escape(page.heading),
            message=escape(page.message),
            details=details,
            actions="\n".join(action.html(page.place) for action in actions) + links,
            refresh=_REFRESH if refresh else "",
            home=escape(f"{self._origins.platform}/"),
            home_label=escape(page.say("home")),
            data=json.dumps(spoken).replace("<", "\\u003c"),
        )
        headers = _headers(nonce, self._form_targets)
        more = (("Retry-After", "2"),) if retry else ()
        return Reply(status, body.encode(), (*headers, *more), page=page.subject)

    @cached_property
    def _form_targets(self) -> str:
        """Where a form may lead: a browser also asks for what its answer redirects to."""
        if self._origins.path_mode:
            return "'self'"
        return f"'self' {self._origins.scheme}://*.{self._origins.apps_host}"


class _Page:
    """What one page says, in the language of the one who reads it."""

    def __init__(self, head: RequestHead, subject: str, name: str = "", place: str = "") -> None:
        chosen = cookie_values(head.get(b"cookie"), b"lang")
        self.language = language_of(chosen[0] if chosen else b"", head.get(b"accept-language"))
        self.subject = subject
        self.name = name
        self.again = place
        self.place = place or head.target.decode()
        self.heading = self.say(f"{subject}.heading")
        self.message = self._texts.get(f"{subject}.message", "")

    @cached_property
    def _texts(self) -> dict[str, str]:
        return TEXTS[self.language]

    def say(self, key: str) -> str:
        return self._texts[key]

    def room(self, home: HomeRecord | None) -> str:
        """What takes the room in a home, as it was last measured."""
        if home is None or home.measured_at is None:
            return ""
        size = home.size
        key = "room.full" if size.is_full else "room.used"
        words = self.say(key).format(used=size_text(size.bytes), quota=size_text(size.quota_bytes))
        rows = [_note(entry.name, size_text(entry.bytes)) for entry in size.largest]
        return f"<p>{escape(words)} {escape(self.say('room.largest') if rows else '')}</p>{_list(rows)}"

    def row(self, words: str, action: PageAction) -> str:
        return f"<li><span>{escape(words)}</span>{action.html(self.place)}</li>"


def _headers(nonce: str, form_targets: str) -> tuple[tuple[str, str], ...]:
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
        f"img-src data:; base-uri 'none'; form-action {form_targets}; frame-ancestors 'none'"
    )
    return (
        ("Content-Type", "text/html; charset=utf-8"),
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "same-origin"),
    )


def _api(workspace: Workspace) -> str:
    return f"/api/v1/workspaces/{workspace.id}"


def _start(label: str, workspace: Workspace) -> PageAction:
    return PageAction(label, "PATCH", _api(workspace), {"desired_state": "RUNNING"}, {"wish": "start"})


def _stop(label: str, workspace: Workspace) -> PageAction:
    wish = {"wish": "stop", "workspace": workspace.id}
    return PageAction(label, "PATCH", _api(workspace), {"desired_state": "STANDBY"}, wish)


def _recover(label: str, path: str, how: Mapping[str, str], *, primary: bool = True) -> PageAction:
    return PageAction(label, "POST", path, how, {"wish": "recover", **how}, primary)


def _progress(workspace: Workspace) -> str:
    moved = workspace.progress
    if moved is None or not moved.total:
        return "<progress></progress>"
    return f'<progress value="{moved.bytes}" max="{moved.total}"></progress>'


def _cause(message: str | None) -> str:
    return f'<p class="cause">{escape(message)}</p>' if message else ""


def _link(url: str, label: str) -> str:
    return f'<p><a class="button" href="{escape(url)}">{escape(label)}</a></p>'


def _note(name: str, words: str) -> str:
    return f"<li><span>{escape(name)}</span>{escape(words)}</li>"


def _list(rows: list[str]) -> str:
    return f"<ul>{''.join(rows)}</ul>" if rows else ""
