"""Every page works without scripts, with only links, forms and meta refresh."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from codehub.database.gate import RecoverFrom
from codehub.database.gateway_queries import Route, StatusPageData
from codehub.database.workspace_queries import RestorableArchive
from codehub.domain.audit import Actor, ActorKind
from codehub.domain.conditions import Condition
from codehub.domain.disk import HomeRecord, HomeSize, LargeEntry
from codehub.domain.observation import Generation, Progress
from codehub.domain.other_backends import OTHER_BACKEND
from codehub.domain.problems import InvalidState, RunningLimitExceeded
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase
from codehub.domain.workspace import PendingRequest, RecoverSource, RequestKind
from codehub.gateway.page_texts import TEXTS, Language
from tests.integration.gateway.harness import (
    ALICE,
    MINE,
    NAVIGATE,
    SESSION,
    THEIRS,
    World,
    header,
    make_workspace,
    status,
    world,
)
from tests.unit.domain.builders import HOME, NOW, conditions

POSTED = "Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"


@dataclass
class Page(HTMLParser):
    """A page as a browser without scripts interprets it."""

    code: int
    html: str
    language: str = ""
    heading: str = ""
    forms: dict[str, str] = field(default_factory=dict)
    """The action of each form, by the text of its button."""
    links: dict[str, str] = field(default_factory=dict)
    refreshes: bool = False
    _open: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "html":
            self.language = values["lang"]
        if tag == "meta" and values.get("http-equiv") == "refresh":
            self.refreshes = any(name == "noscript" for name, _ in self._open)
        if tag not in ("meta", "link"):
            self._open.append((tag, values))

    def handle_endtag(self, tag: str) -> None:
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not self._open or not data.strip():
            return
        tag, values = self._open[-1]
        if tag == "h1":
            self.heading = data
        elif tag == "a":
            self.links[data] = values["href"]
        elif tag == "button":
            (form,) = [found for name, found in self._open if name == "form"]
            assert form["method"] == "post"
            assert data not in self.forms
            self.forms[data] = form["action"]


async def visit(made: World, target: str = "/", more: str = "", session: str = SESSION) -> Page:
    head, body = await made.ask(made.entrance(target, session, NAVIGATE + more))
    assert "form-action 'self'" in (header(head, "content-security-policy") or "")
    return Page(status(head), body.decode())


async def press(made: World, action: str, more: str = POSTED, session: str = SESSION) -> tuple[int, str, str]:
    """Submit a form. Return the status, the redirect target and the page, if any."""
    head, body = await made.ask(
        f"POST {action} HTTP/1.1\r\nHost: {made.platform}\r\nOrigin: http://{made.platform}\r\n"
        f"Cookie: session={session}\r\nContent-Length: 0\r\n{more}\r\n"
    )
    return status(head), header(head, "location") or "", body.decode()


@pytest.fixture(params=["origin mode", "path mode"])
async def each_mode(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Each of the two modes, since the status pages are the same in both."""
    async with world(apps=request.param == "origin mode") as made:
        yield made


@pytest.mark.parametrize(
    ("phase", "button"), [(Phase.ARCHIVED, "Restore and open"), (Phase.PENDING, "Start")]
)
async def test_restore_and_start_are_forms(each_mode: World, phase: Phase, button: str) -> None:
    each_mode.set_phase(MINE, phase)
    page = await visit(each_mode, "/a/b?c=d&e")
    assert (page.code, page.refreshes) == (502, False)
    back = f"http://{each_mode.platform}/w/{MINE}/a/b?c=d&e"
    assert await press(each_mode, page.forms[button]) == (303, back, "")
    assert each_mode.facts.woken == [(MINE, "alice")]
    each_mode.set_phase(MINE, phase, desired_state=DesiredState.RUNNING)
    assert (await visit(each_mode)).refreshes


async def test_a_page_that_was_open_during_an_upgrade_still_starts_the_workspace(each_mode: World) -> None:
    """Pages of earlier versions send the action as `wish`."""
    each_mode.set_phase(MINE, Phase.ARCHIVED)
    entry = f"/w/{MINE}/"
    started = await press(each_mode, f"{entry}.codehub/do?wish=start&to=/a")
    assert started == (303, f"http://{each_mode.platform}{entry}a", "")
    assert each_mode.facts.woken == [(MINE, "alice")]


@pytest.mark.parametrize("phase", [Phase.STANDBY, Phase.RUNNING, Phase.PENDING])
async def test_a_workspace_of_another_runtime_shows_the_reason_and_is_not_woken(
    origin_mode: World, phase: Phase
) -> None:
    reason = Condition(True, OTHER_BACKEND, "This workspace is on the docker runtime.", NOW)
    origin_mode.set_phase(MINE, phase, conditions=conditions(healthy=reason))
    origin_mode.facts.routes[MINE] = replace(origin_mode.facts.routes[MINE], upstream=None)
    page = await visit(origin_mode)
    assert page.code == 502 and "This workspace is on the docker runtime." in page.html
    assert page.forms == {} and origin_mode.facts.woken == []


async def test_the_loading_page_refreshes_until_the_ide_runs(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.ARCHIVED, Operation.RESTORING, progress=Progress(5, 20))
    page = await visit(origin_mode)
    assert (page.code, page.refreshes) == (200, True)
    assert '<progress value="5" max="20">' in page.html
    assert "Restoring the home from its archive" in page.html
    origin_mode.set_phase(MINE, Phase.RUNNING)
    head, _ = await origin_mode.ask(origin_mode.entrance())
    assert (header(head, "location") or "").startswith(f"http://{origin_mode.host}/.codehub/begin?")


SOURCES = {"Restore": RecoverSource.ARCHIVE, "Start with an empty home": RecoverSource.EMPTY}


async def test_an_error_is_recovered_by_a_form(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.ERROR, error_message="The disk was full.")
    page = await visit(origin_mode)
    assert page.code == 502 and "The disk was full." in page.html
    assert (await press(origin_mode, page.forms["Recover"]))[0] == 303
    alice = Actor(ActorKind.USER, "alice", ALICE, "127.0.0.1")
    assert origin_mode.facts.recovered == [(MINE, alice, None)]


async def test_a_lost_home_is_recovered_from_the_chosen_source(origin_mode: World) -> None:
    lost = make_workspace(MINE, Phase.ERROR, error_reason=ErrorReason.DataLost, error_message="gone")
    origin_mode.set_phase(MINE, Phase.ERROR)
    archive = RestorableArchive("01archive", datetime(2025, 1, 2, 3, 4, tzinfo=UTC), 10, True)
    origin_mode.facts.page_data[MINE] = StatusPageData(lost, [archive])
    page = await visit(origin_mode)
    for button in ("Restore", "Start with an empty home"):
        assert (await press(origin_mode, page.forms[button]))[0] == 303
    chosen = [RecoverFrom(RecoverSource.ARCHIVE, "01archive"), RecoverFrom(RecoverSource.EMPTY)]
    assert [source for *_, source in origin_mode.facts.recovered] == chosen


CHOICES = ("Restore", "Start with an empty home")
RECOVERIES = {
    "a container without its home": (ErrorReason.ContainerWithoutVolume, HOME, False, CHOICES),
    "a damaged archive": (ErrorReason.ArchiveCorrupted, None, False, ("Recover", *CHOICES)),
    "a foreign home": (ErrorReason.RetryExceeded, None, False, ("Recover", *CHOICES)),
    "a home that exists again": (ErrorReason.DataLost, HOME, True, ("Recover with the home that is there",)),
}


@pytest.mark.parametrize(("reason", "home", "volume", "expected"), RECOVERIES.values(), ids=RECOVERIES)
async def test_every_error_offers_a_recovery(
    origin_mode: World, reason: ErrorReason, home: Generation | None, volume: bool, expected: tuple[str, ...]
) -> None:
    failed = make_workspace(
        MINE, Phase.ERROR, error_reason=reason, home_ctx=home, conditions=conditions(volume, False)
    )
    origin_mode.set_phase(MINE, Phase.ERROR)
    archive = RestorableArchive("01archive", datetime(2025, 1, 2, 3, 4, tzinfo=UTC), 10, True)
    origin_mode.facts.page_data[MINE] = StatusPageData(failed, [archive])
    page = await visit(origin_mode)
    assert set(page.forms) == set(expected)
    for button in expected:
        assert (await press(origin_mode, page.forms[button]))[0] == 303
    requested = {source.source if source else None for *_, source in origin_mode.facts.recovered}
    assert requested == {SOURCES.get(button) for button in expected}


async def test_a_recovery_in_progress_shows_no_button(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.ERROR, request=PendingRequest(RequestKind.RECOVER, "alice"))
    page = await visit(origin_mode)
    assert page.forms == {} and page.refreshes


async def test_the_limit_page_lists_counted_workspaces_that_cannot_be_stopped(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    origin_mode.facts.wake_error = RunningLimitExceeded("You already run 1 of 1.")
    origin_mode.facts.counted = [
        make_workspace(THEIRS, Phase.ERROR, name="broken", error_reason=ErrorReason.ContainerWithoutVolume)
    ]
    page = await visit(origin_mode)
    assert "Stop" not in page.forms
    assert "broken" in page.html and "In error: recover or delete it" in page.html
    assert TEXTS["en"]["limit.others"] not in page.html


async def test_above_the_limit_each_running_workspace_can_be_stopped(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    origin_mode.facts.wake_error = RunningLimitExceeded("You already run 1 of 1.")
    running = make_workspace(THEIRS, Phase.RUNNING, name="other", desired_state=DesiredState.RUNNING)
    origin_mode.facts.counted = [running]
    origin_mode.facts.routes[THEIRS] = Route(
        THEIRS, ALICE, Phase.RUNNING, Operation.NONE, None, "code-server"
    )
    page = await visit(origin_mode, "/x")
    assert (page.code, page.refreshes) == (502, False)
    back = f"http://{origin_mode.platform}/w/{MINE}/x"
    assert await press(origin_mode, page.forms["Stop"]) == (303, back, "")
    assert origin_mode.facts.stopped == [(THEIRS, "alice")]
    origin_mode.facts.counted = [make_workspace(THEIRS, Phase.RUNNING, operation=Operation.STOPPING)]
    assert (await visit(origin_mode)).refreshes  # the start follows when the other one has stopped


async def test_a_start_above_the_limit_shows_the_limit_page_and_returns(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.ARCHIVED)
    action = (await visit(origin_mode, "/x")).forms["Restore and open"]
    origin_mode.facts.wake_error = RunningLimitExceeded("You already run 1 of 1.")
    running = make_workspace(THEIRS, Phase.RUNNING, name="other", desired_state=DesiredState.RUNNING)
    origin_mode.facts.counted = [running]
    code, _, html = await press(origin_mode, action)
    page = Page(code, html)
    assert page.code == 502 and page.heading == "Too many workspaces are running"
    assert page.links["Try again"] == f"/w/{MINE}/x"
    assert f"workspace={THEIRS}" in page.forms["Stop"] and page.forms["Stop"].startswith(
        f"/w/{MINE}/.codehub"
    )
    head, _ = await origin_mode.ask(origin_mode.entrance(action.removeprefix(f"/w/{MINE}")))  # loaded again
    assert header(head, "location") == f"http://{origin_mode.platform}/w/{MINE}/x"


async def test_a_refused_start_shows_the_reason(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.PENDING)
    action = (await visit(origin_mode)).forms["Start"]
    origin_mode.facts.wake_error = InvalidState("Not <now>.")
    code, _, html = await press(origin_mode, action)
    assert code == 409 and "Not &lt;now&gt;." in html
    assert Page(code, html).links["Try again"] == f"/w/{MINE}/"


async def test_only_the_owner_may_submit_forms_and_only_from_the_platforms_pages(each_mode: World) -> None:
    each_mode.set_phase(MINE, Phase.ARCHIVED)
    action = (await visit(each_mode)).forms["Restore and open"]
    code, location, _ = await press(each_mode, action, session="gone")
    assert (code, location) == (303, f"http://{each_mode.platform}/login?next=/w/{MINE}/")
    assert (await press(each_mode, action, session="bob-session"))[0] == 404
    for more in ("Sec-Fetch-Site: same-site\r\n", "Sec-Fetch-Site: cross-site\r\n"):
        assert (await press(each_mode, action, more))[0] == 403
    foreign = f"POST {action} HTTP/1.1\r\nHost: {each_mode.platform}\r\nCookie: session={SESSION}\r\n"
    header_lines = f"Origin: http://{MINE}.{each_mode.platform}\r\nContent-Length: 0\r\n\r\n"
    assert status((await each_mode.ask(foreign + header_lines))[0]) == 403
    stop = f"/w/{MINE}/.codehub/do?action=stop&workspace="
    each_mode.facts.routes[THEIRS] = Route(THEIRS, "01someone", Phase.RUNNING, Operation.NONE, None, "x")
    assert [(await press(each_mode, stop + which))[0] for which in (THEIRS, "..", "01nobody")] == [404] * 3
    for what in ("do?action=delete", "do", "do?action=recover&from=thin-air"):
        assert (await press(each_mode, f"/w/{MINE}/.codehub/{what}"))[0] == 404
    facts = each_mode.facts
    assert not (facts.woken or facts.stopped or facts.recovered) and not each_mode.ide.heads
    _, location, _ = await press(each_mode, f"/w/{MINE}/.codehub/do?action=start&to=//evil.example")
    assert location == f"http://{each_mode.platform}/w/{MINE}//evil.example"  # a path below the entry URL


@pytest.mark.parametrize("language", ["en", "ko"])
async def test_error_pages_name_the_error_and_link_to_the_dashboard(
    path_mode: World, language: Language
) -> None:
    texts, more = TEXTS[language], f"Accept-Language: {language}\r\n"
    missing = await visit(path_mode, more=more, session=SESSION) if path_mode.facts.routes.pop(MINE) else None
    path_mode.set_phase(MINE, Phase.RUNNING)
    forbidden = await visit(path_mode, more=more, session="bob-session")
    await path_mode.ide.stop()
    path_mode.ide.path.unlink(missing_ok=True)
    gone = await visit(path_mode, more=more)
    for page, code, subject in (
        (missing, 404, "missing"),
        (forbidden, 403, "forbidden"),
        (gone, 502, "gone"),
    ):
        assert page is not None
        assert (page.code, page.language, page.heading) == (code, language, texts[f"{subject}.heading"])
        assert page.links[texts["home"]] == f"http://{path_mode.platform}/"
    assert gone.links[texts["again"]] == ""  # the same page again
    assert "prefers-color-scheme: dark" in gone.html and "color-scheme: light dark" in gone.html


def test_both_languages_have_the_same_texts() -> None:
    assert TEXTS["en"].keys() == TEXTS["ko"].keys()


def home(**changes: object) -> HomeRecord:
    size = HomeSize(41 << 30, 12, largest=(LargeEntry(".cache/<b>pip", 40 << 30),), quota_bytes=0)
    record = HomeRecord(size, datetime(2026, 1, 1, tzinfo=UTC))
    return replace(record, **changes)  # type: ignore[arg-type]


async def test_a_workspace_that_the_disk_watchdog_stopped_shows_the_reason_and_is_not_woken(
    origin_mode: World,
) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY)
    stopped = home(notice="Stopped: the disk has 300 MiB left.", stopped_at=datetime(2026, 1, 1, tzinfo=UTC))
    origin_mode.facts.page_data[MINE] = replace(origin_mode.facts.page_data[MINE], home=stopped)
    for _ in range(2):
        page = await visit(origin_mode)
        assert (page.code, page.refreshes) == (502, False)
        assert "Stopped: the disk has 300 MiB left." in page.html
        assert ".cache/&lt;b&gt;pip" in page.html and "40.0 GiB" in page.html
        assert origin_mode.facts.woken == []
    assert (await press(origin_mode, page.forms["Start"]))[0] == 303
    assert origin_mode.facts.woken == [(MINE, "alice")]


async def test_a_visit_does_not_repeat_a_start_that_failed_for_disk_space(
    origin_mode: World,
) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY, error_message="Waiting for disk space: 1 MiB left.")
    page = await visit(origin_mode)
    assert page.code == 502 and "Waiting for disk space: 1 MiB left." in page.html
    assert origin_mode.facts.woken == []


async def test_the_loading_page_of_a_full_home_lists_its_largest_entries(origin_mode: World) -> None:
    origin_mode.set_phase(MINE, Phase.STANDBY, Operation.STARTING)
    full = home(size=replace(home().size, quota_bytes=41 << 30))
    origin_mode.facts.page_data[MINE] = replace(origin_mode.facts.page_data[MINE], home=full)
    page = await visit(origin_mode)
    assert (page.code, page.refreshes) == (200, True)
    assert "The home is full: 41.0 GiB of 41.0 GiB used." in page.html
    assert ".cache/&lt;b&gt;pip" in page.html
