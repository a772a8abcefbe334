"""The conformance table: each row runs through a real gateway, and its upstream records all bytes.

A row of plain bytes runs three times: alone, twice in a row, and after a harmless request on the
same connection that ends with the same fields. An accepted request must not admit a different one
after it.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from codehub.gateway.http1.request_fast_path import RequestFastPath
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
from tests.integration.gateway.conformance.case import HARMLESS, HARMLESS_FORWARDED, OK, Case, End, Mode
from tests.integration.gateway.conformance.case_runner import CaseRunner, Outcome
from tests.integration.gateway.harness import world

GROUPS = (heads, targets, routes, fields, bodies, smuggling, hop_by_hop, cookies, responses, upgrades, aborts)
TABLE: dict[str, Case] = {
    f"{group.__name__.rpartition('.')[2]}: {case.name}": case for group in GROUPS for case in group.CASES
}
AT_LEAST = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(request: pytest.FixtureRequest) -> AsyncIterator[CaseRunner]:
    path_mode = request.param == "path"
    async with world(apps=not path_mode) as made:
        runner = CaseRunner(made, path_mode=path_mode)
        await runner.warm_up()
        yield runner


def test_the_table_is_large_and_has_no_duplicate() -> None:
    assert len(TABLE) == sum(len(group.CASES) for group in GROUPS)
    assert len({(case.sent, case.response, case.mode) for case in TABLE.values()}) == len(TABLE)
    assert len(TABLE) >= AT_LEAST


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("runner", "name"),
    [(mode, name) for mode in Mode.BOTH.value for name, case in TABLE.items() if mode in case.mode.value],
    indirect=["runner"],
)
async def test_each_case_of_the_conformance_table(runner: CaseRunner, name: str) -> None:
    case = TABLE[name]
    check(runner, case, await runner.run(case))
    if case.is_repeatable:
        check(runner, case, await runner.run(case, before=HARMLESS), after_harmless=True)
    if case.is_repeatable and case.end is End.OPEN:
        check(runner, case, await runner.run(case, times=2), times=2)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("runner", Mode.BOTH.value, indirect=True)
async def test_a_repeated_request_is_relayed_by_comparison(
    runner: CaseRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shows that the cases above test the comparison."""
    repeats = []
    repeat = RequestFastPath.repeat

    def recorded(self: RequestFastPath, *arguments: Any) -> Any:
        relay = repeat(self, *arguments)
        repeats.append(relay is not None)
        return relay

    monkeypatch.setattr(RequestFastPath, "repeat", recorded)
    await runner.run(TABLE["heads: a plain request"], times=2)
    assert repeats == [True, True]  # the second one, and the probe


def check(
    runner: CaseRunner, case: Case, outcome: Outcome, *, after_harmless: bool = False, times: int = 1
) -> None:
    before, after = HARMLESS_FORWARDED if after_harmless else b"", b""
    if case.end is End.OPEN:
        assert outcome.probe_answered, outcome.returned
        after = HARMLESS_FORWARDED.replace(b"/harmless", b"/probe")
    assert outcome.problems == []
    if case.to_api:
        assert outcome.received == runner.fill(case.forwarded * times)
        assert outcome.received_elsewhere == runner.fill(before + after)
    else:
        assert outcome.received == runner.fill(before + case.forwarded * times + after)
        assert outcome.received_elsewhere == b""
    check_responses(runner, case, outcome.returned, (OK if after_harmless else b""), times)


def check_responses(runner: CaseRunner, case: Case, returned: bytes, before: bytes, times: int) -> None:
    if not isinstance(case.returned, bytes):
        expected = case.returned if isinstance(case.returned, tuple) else (case.returned,)
        assert statuses(returned) == statuses(before) + expected * times
    elif case.end is End.TRUNCATED:
        assert (before + case.returned).startswith(returned)
    else:
        assert returned == runner.fill(before + case.returned * times)


def statuses(data: bytes) -> tuple[int, ...]:
    """Return the status of each response. One without a length has no body."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        found.append(int(head[9:12]))
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        data = data[int(lengths[0].partition(b":")[2]) if lengths else 0 :]
    return tuple(found)
