"""HTML pages of the gateway: small, in the user's language, with everything escaped."""

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
from codehub.domain.disk import HomeRecord, size_text
from codehub.domain.other_backends import left_alone_message
from codehub.domain.problems import Problem
from codehub.domain.reserved_paths import FORM_PATH
from codehub.domain.states import DesiredState, Operation, Phase
from codehub.domain.workspace import Workspace
from codehub.gateway.config import Origins
from codehub.gateway.cookies import cookie_values
from codehub.gateway.http1.reply import Reply
from codehub.gateway.http1.request_head import RequestHead
from codehub.gateway.page_texts import TEXTS, language_of

_ENTRY_LENGTH: Final = len("/w/") + 26
_FILES: Final = Path(__file__).parent / "pages"


_REFRESH: Final = '<noscript><meta http-equiv="refresh" content="2"></noscript>'
"""Reloads a page that changes, for browsers that run no script. The script polls the API instead."""


@dataclass(frozen=True)
class PageAction:
    """A button that sends a request to the API, and then reloads the page.

    Without scripts it is a form, which sends `form` to the gateway (page_form_handler.py).
    """

    label: str
    method: str
    path: str
    body: Mapping[str, str]
    form: Mapping[str, str]
    primary: bool = True

    def html(self, path: str) -> str:
        """Return the button for the page at this path."""
        kind = "primary" if self.primary else "plain"
        body = escape(json.dumps(self.body))
        entry, rest = path[:_ENTRY_LENGTH], path[_ENTRY_LENGTH:]
        action = f"{entry}{FORM_PATH}?{urlencode({**self.form, 'to': rest})}"
        return (
            f'<form method="post" action="{escape(action)}">'
            f'<button class="{kind}" data-method="{self.method}" data-path="{escape(self.path)}" '
            f'data-body="{body}">{escape(self.label)}</button></form>'
        )


class Pages:
    """Renderer of the pages. Each method renders the page of its name."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._template = Template((_FILES / "page.html").read_text(encoding="utf-8"))
        self._style = (_FILES / "page.css").read_text(encoding="utf-8")
        self._script = (_FILES / "page.js").read_text(encoding="utf-8")

    def loading(self, head: RequestHead, workspace: Workspace, home: HomeRecord | None = None) -> Reply:
        page = _Page(head, "loading", name=workspace.name)
        step = workspace.operation.value if workspace.operation is not Operation.NONE else "WAITING"
        step_line = f'<p class="soft" id="step" aria-live="polite">{page.text(step)}</p>'
        waits = f"<noscript>{_cause(workspace.error_message)}</noscript>" if workspace.error_message else ""
        full = page.disk_usage(home) if home is not None and home.size.is_full else ""
        details = f"{_progress(workspace)}{step_line}{waits}{full}"
        steps = {
            name: page.text(name)
            for name in ("WAITING", *(item.value for item in Operation if item != "NONE"))
        }
        data = {"pollWorkspace": _api(workspace), "steps": steps}
        return self._reply(200, page, details=details, data=data, refresh=True)

    def archived(self, head: RequestHead, workspace: Workspace) -> Reply:
        page = _Page(head, "archived", name=workspace.name)
        actions = [_start(page.text("archived.button"), workspace)]
        return self._reply(502, page, details=_cause(workspace.error_message), actions=actions)

    def pending(self, head: RequestHead, workspace: Workspace) -> Reply:
        page = _Page(head, "pending", name=workspace.name)
        actions = [_start(page.text("pending.button"), workspace)]
        return self._reply(502, page, details=_cause(workspace.error_message), actions=actions)

    def stopped(self, head: RequestHead, page_data: StatusPageData, cause: str) -> Reply:
        """Explain why a workspace does not run, with a button to start it."""
        workspace = page_data.workspace
        page = _Page(head, "stopped", name=workspace.name)
        details = f"{_cause(cause)}{page.disk_usage(page_data.home)}"
        actions = [_start(page.text("stopped.button"), workspace)]
        return self._reply(502, page, details=details, actions=actions)

    def left_alone(self, head: RequestHead, workspace: Workspace) -> Reply:
        """Explain that a workspace belongs to another runtime or storage, and cannot be started."""
        page = _Page(head, "backend", name=workspace.name)
        details = f'<p class="cause">{escape(left_alone_message(workspace) or "")}</p>'
        return self._reply(502, page, details=details, retry_link=True)

    def error(self, head: RequestHead, page_data: StatusPageData) -> Reply:
        workspace = page_data.workspace
        page = _Page(head, "error", name=workspace.name)
        cause = workspace.error_message or page.text("error.unknown")
        details = _cause(cause)
        if page_data.home is not None and page_data.home.size.is_full:
            details += page.disk_usage(page_data.home)
        recover = f"{_api(workspace)}/recover"
        ways = recovery_options(workspace)
        actions = [
            PageAction(page.text(f"error.{way}"), "POST", recover, {}, {"action": "recover"})
            for way in ways
            if way in (RecoveryOption.LOOK_AGAIN, RecoveryOption.HOME)
        ]
        if RecoveryOption.EMPTY not in ways:
            return self._reply(502, page, details=details, actions=actions, refresh=not ways)
        rows = [
            page.row(
                page.text("lost.archive").format(date=f"{archive.created_at:%Y-%m-%d %H:%M} UTC"),
                _recover(
                    page.text("lost.restore"),
                    recover,
                    {"from": "archive", "archive_op_id": archive.archive_op_id},
                ),
            )
            for archive in page_data.archives
        ]
        details += f"<p>{escape(page.text('error.choose' if actions else 'lost.message'))}</p>{_list(rows)}"
        actions.append(_recover(page.text("lost.empty"), recover, {"from": "empty"}, primary=False))
        return self._reply(502, page, details=details, actions=actions)

    def over_the_limit(self, head: RequestHead, why: str, counted: list[Workspace], path: str = "") -> Reply:
        """List the running workspaces. `path` is the page to retry, if it is not the requested one."""
        page = _Page(head, "limit", path=path)
        broken = [item for item in counted if item.phase is Phase.ERROR and item.request is None]
        stopping = [
            item for item in counted if item.desired_state is not DesiredState.RUNNING and item not in broken
        ]
        running = [item for item in counted if item not in broken and item not in stopping]
        rows = [_note(item.name, page.text("limit.going")) for item in stopping]
        rows += [_note(item.name, page.text("limit.broken")) for item in broken]
        rows += [page.row(item.name, _stop(page.text("limit.stop"), item)) for item in running]
        page.message = page.text("limit.message" if rows else "limit.others")
        details = f'<p class="soft">{escape(why)}</p>{_list(rows)}'
        data = {"reload": bool(stopping)}
        return self._reply(502, page, details=details, data=data, retry_link=True, refresh=bool(stopping))

    def refused(self, head: RequestHead, problem: Problem, path: str) -> Reply:
        """Explain why the gate refused a form, with a link back."""
        page = _Page(head, "refused", path=path)
        page.message = problem.message
        return self._reply(problem.status, page, retry_link=True)

    def missing(self, head: RequestHead) -> Reply:
        return self._reply(404, _Page(head, "missing"))

    def forbidden(self, head: RequestHead) -> Reply:
        return self._reply(403, _Page(head, "forbidden"))

    def unreachable(self, head: RequestHead, *, for_workspace: bool) -> Reply:
        return self._reply(502, _Page(head, "gone" if for_workspace else "down"), retry_link=True)

    def too_many_fields(self, head: RequestHead) -> Reply:
        return self._reply(502, _Page(head, "fields"), retry_link=True)

    def two_sessions(self, head: RequestHead) -> Reply:
        page = _Page(head, "sessions")
        login = f"{self._origins.platform}/login"
        return self._reply(400, page, details=_link(login, page.text("sessions.button")))

    def too_many_cookies(self, head: RequestHead) -> Reply:
        return self._reply(431, _Page(head, "cookies"), retry_link=True)

    def token_in_address(self, head: RequestHead) -> Reply:
        return self._reply(400, _Page(head, "token"))

    def other_browser(self, head: RequestHead, entry: str) -> Reply:
        """Refuse a ticket that was issued to another browser, with a link to the entry."""
        page = _Page(head, "ticket", path=entry)
        page.message = page.message.format(host=head.host)
        return self._reply(403, page, details=_link(entry, page.text("ticket.button")))

    def no_such_port(self, head: RequestHead) -> Reply:
        return self._reply(404, _Page(head, "noport"))

    def ports_are_off(self, head: RequestHead) -> Reply:
        return self._reply(502, _Page(head, "ports"))

    def nothing_listens(self, head: RequestHead, port: int, *, in_container: bool) -> Reply:
        page = _Page(head, "silent")
        page.heading = page.heading.format(port=port)
        details = f"<p>{escape(page.text('silent.container'))}</p>" if in_container else ""
        return self._reply(502, page, details=details, data={"pollPort": True}, retry_link=True)

    def unavailable(self, head: RequestHead) -> Reply:
        return self._reply(503, _Page(head, "down"), retry_link=True, retry_after=True)

    def no_space(self, head: RequestHead) -> Reply:
        """Explain that the database or Redis has no disk space left."""
        return self._reply(507, _Page(head, "full"), retry_link=True, retry_after=True)

    def misdirected(self, head: RequestHead) -> Reply:
        page = _Page(head, "elsewhere")
        page.message = page.text("elsewhere.message").format(url=self._origins.platform)
        return self._reply(421, page)

    def _reply(
        self,
        status: int,
        page: "_Page",
        *,
        details: str = "",
        actions: Iterable[PageAction] = (),
        data: Mapping[str, object] | None = None,
        retry_link: bool = False,
        retry_after: bool = False,
        refresh: bool = False,
    ) -> Reply:
        nonce = secrets.token_urlsafe(16)
        links = _retry_link(page) if retry_link else ""
        script_data = {"unreachable": page.text("unreachable"), **(data or {})}
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
            actions="\n".join(action.html(page.path) for action in actions) + links,
            refresh=_REFRESH if refresh else "",
            home=escape(f"{self._origins.platform}/"),
            home_label=escape(page.text("home")),
            data=json.dumps(script_data).replace("<", "\\u003c"),
        )
        headers = _headers(nonce, self._form_targets)
        more = (("Retry-After", "2"),) if retry_after else ()
        return Reply(status, body.encode(), (*headers, *more), page=page.subject)

    @cached_property
    def _form_targets(self) -> str:
        """Return the CSP sources of forms. Browsers check the redirects after a form against them, too."""
        if self._origins.path_mode:
            return "'self'"
        return f"'self' {self._origins.scheme}://*.{self._origins.apps_host}"


class _Page:
    """The texts of one page, in the reader's language."""

    def __init__(self, head: RequestHead, subject: str, name: str = "", path: str = "") -> None:
        chosen = cookie_values(head.get(b"cookie"), b"lang")
        self.language = language_of(chosen[0] if chosen else b"", head.get(b"accept-language"))
        self.subject = subject
        self.name = name
        self.retry_url = path
        self.path = path or head.target.decode()
        self.heading = self.text(f"{subject}.heading")
        self.message = self._texts.get(f"{subject}.message", "")

    @cached_property
    def _texts(self) -> dict[str, str]:
        return TEXTS[self.language]

    def text(self, key: str) -> str:
        return self._texts[key]

    def disk_usage(self, home: HomeRecord | None) -> str:
        """Describe what uses the disk space of a home, as last measured."""
        if home is None or home.measured_at is None:
            return ""
        size = home.size
        key = "disk.full" if size.is_full else "disk.used"
        message = self.text(key).format(used=size_text(size.bytes), quota=size_text(size.quota_bytes))
        rows = [_note(entry.name, size_text(entry.bytes)) for entry in size.largest]
        return f"<p>{escape(message)} {escape(self.text('disk.largest') if rows else '')}</p>{_list(rows)}"

    def row(self, label: str, action: PageAction) -> str:
        return f"<li><span>{escape(label)}</span>{action.html(self.path)}</li>"


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
    return PageAction(label, "PATCH", _api(workspace), {"desired_state": "RUNNING"}, {"action": "start"})


def _stop(label: str, workspace: Workspace) -> PageAction:
    form = {"action": "stop", "workspace": workspace.id}
    return PageAction(label, "PATCH", _api(workspace), {"desired_state": "STANDBY"}, form)


def _recover(label: str, path: str, how: Mapping[str, str], *, primary: bool = True) -> PageAction:
    return PageAction(label, "POST", path, how, {"action": "recover", **how}, primary)


def _progress(workspace: Workspace) -> str:
    progress = workspace.progress
    if progress is None or not progress.total:
        return "<progress></progress>"
    return f'<progress value="{progress.bytes}" max="{progress.total}"></progress>'


def _cause(message: str | None) -> str:
    return f'<p class="cause">{escape(message)}</p>' if message else ""


def _link(url: str, label: str) -> str:
    return f'<p><a class="button" href="{escape(url)}">{escape(label)}</a></p>'


def _retry_link(page: _Page) -> str:
    return f'<p><a href="{escape(page.retry_url)}">{escape(page.text("again"))}</a></p>'


def _note(name: str, note: str) -> str:
    return f"<li><span>{escape(name)}</span>{escape(note)}</li>"


def _list(rows: list[str]) -> str:
    return f"<ul>{''.join(rows)}</ul>" if rows else ""
