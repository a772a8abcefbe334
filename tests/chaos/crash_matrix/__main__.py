"""Play one cell again: `python -m tests.chaos.crash_matrix SCENARIO STORE WHO OF STEP SIDE`.

Without WHO it lists every moment of the scenario.
"""

import sys
from contextlib import ExitStack

from tests.chaos.crash_matrix.installation import Site, open_site
from tests.chaos.crash_matrix.matrix import Cell, depends_on_time
from tests.chaos.crash_matrix.play import play, record
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.scenarios import ON_S3, SCENARIOS
from tests.chaos.crash_matrix.steps import Moment
from tests.s3 import S3Server
from tests.services import Services, run


def main(name: str, store: str, who: str = "", *moment: str) -> int:
    scenarios = ON_S3 if store == "s3" else SCENARIOS
    (scenario,) = [scenario for scenario in scenarios if scenario.name == name]
    with ExitStack() as stack:
        services = stack.enter_context(Services.running())
        site = stack.enter_context(open_site(services, 1))
        if store == "s3":
            stack.enter_context(site.on_s3(stack.enter_context(S3Server.running())))
        return run(_again(site, scenario, who, moment))


async def _again(site: Site, scenario: Scenario, who: str, moment: tuple[str, ...]) -> int:
    async with site.lanes[0].connected() as lane:
        if not who:
            for words in await record(lane, scenario):
                print("\t".join(words))
            return 0
        death = Cell(who, (Moment(*moment),)).death
        may_pass = depends_on_time(scenario, death.moment.step)
        outcome = await play(lane, scenario, death, site.hashes, may_pass=may_pass)
        print(f"{outcome.words} after {outcome.seconds:.2f} s\n\n{await lane.story()}")
        return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
