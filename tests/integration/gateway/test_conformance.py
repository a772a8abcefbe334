"""The conformance table: each row through a real gateway, against an upstream that records the exact bytes.

A row that is plain bytes is played three times: alone, twice in a row, and after a harmless request on the
same connection, whose fields it ends with: what was let through before must not open a door for what comes
after.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from codehub.gateway.http1.repeated_request import RepeatedRequest
from tests.integration.gateway.conformance import (
    aborts,
    bodies,
    cookies,
    fields,
    heads,
    hop_by_hop,
    responses,
    routes,
    smuggling,
    targets,
    upgrades,
)
from tests.integration.gateway.conformance.case import HARMLESS, HARMLESS_SEEN, OK, Case, End, Mode
from tests.integration.gateway.conformance.case_runner import Outcome, Stage
from tests.integration.gateway.harness import world

GROUPS = (heads, targets, routes, fields, bodies, smuggling, hop_by_hop, cookies, responses, upgrades, aborts)
TABLE: dict[str, Case] = {
    f"{group.__name__.rpartition('.')[2]}: {case.name}": case for group in GROUPS for case in group.CASES
}
AT_LEAST = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    path_mode = request.param == "path"
    async with world(apps=not path_mode) as made:
        set_up = Stage(made, path_mode=path_mode)
        await set_up.warm_up()
        yield set_up


def test_the_table_is_large_and_no_row_stands_twice_in_it() -> None:
    assert len(TABLE) == sum(len(group.CASES) for group in GROUPS)
    assert len({(case.sends, case.answer, case.mode) for case in TABLE.values()}) == len(TABLE)
    assert len(TABLE) >= AT_LEAST


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("stage", "name"),
    [(mode, name) for mode in Mode.BOTH.value for name, case in TABLE.items() if mode in case.mode.value],
    indirect=["stage"],
)
async def test_a_row(stage: Stage, name: str) -> None:
    case = TABLE[name]
    check(stage, case, await stage.play(case))
    if case.is_plain:
        check(stage, case, await stage.play(case, before=HARMLESS), after_harmless=True)
    if case.is_plain and case.end is End.STAYS:
        check(stage, case, await stage.play(case, times=2), times=2)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stage", Mode.BOTH.value, indirect=True)
async def test_what_comes_twice_is_let_through_by_comparison(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else the rows above would prove nothing about it."""
    repeats = []
    repeat = RepeatedRequest.repeat

    def watched(self: RepeatedRequest, *arguments: Any) -> Any:
        relay = repeat(self, *arguments)
        repeats.append(relay is not None)
        return relay

    monkeypatch.setattr(RepeatedRequest, "repeat", watched)
    await stage.play(TABLE["heads: a plain request"], times=2)
    assert repeats == [True, True]  # the second one, and the probe


def check(
    stage: Stage, case: Case, outcome: Outcome, *, after_harmless: bool = False, times: int = 1
) -> None:
    before, after = HARMLESS_SEEN if after_harmless else b"", b""
    if case.end is End.STAYS:
        assert outcome.probed, outcome.got
        after = HARMLESS_SEEN.replace(b"/harmless", b"/probe")
    assert outcome.problems == []
    if case.by_api:
        assert outcome.seen == stage.fill(case.sees * times)
        assert outcome.elsewhere == stage.fill(before + after)
    else:
        assert outcome.seen == stage.fill(before + case.sees * times + after)
        assert outcome.elsewhere == b""
    check_answers(stage, case, outcome.got, (OK if after_harmless else b""), times)


def check_answers(stage: Stage, case: Case, got: bytes, before: bytes, times: int) -> None:
    if not isinstance(case.gets, bytes):
        expected = case.gets if isinstance(case.gets, tuple) else (case.gets,)
        assert statuses(got) == statuses(before) + expected * times
    elif case.end is End.BROKEN:
        assert (before + case.gets).startswith(got)
    else:
        assert got == stage.fill(before + case.gets * times)


def statuses(data: bytes) -> tuple[int, ...]:
    """The status of each answer; those without a length have no body."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        found.append(int(head[9:12]))
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        data = data[int(lengths[0].partition(b":")[2]) if lengths else 0 :]
    return tuple(found)
