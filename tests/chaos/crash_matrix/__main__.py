"""Repeat one cell: `python -m tests.chaos.crash_matrix SCENARIO STORE TARGET PROCESS STEP SIDE`.

Without TARGET it lists every crash point of the scenario.
"""

import sys
from contextlib import ExitStack

from tests.chaos.crash_matrix.crash_run import record_points, run_with_crash
from tests.chaos.crash_matrix.installation_pool import InstallationPool, open_installation_pool
from tests.chaos.crash_matrix.matrix import Cell, depends_on_time
from tests.chaos.crash_matrix.scenario import Scenario
from tests.chaos.crash_matrix.scenarios import ON_S3, SCENARIOS
from tests.chaos.crash_matrix.steps import CrashPoint
from tests.s3 import S3Server
from tests.services import Services, run


def main(name: str, store: str, target: str = "", *point: str) -> int:
    scenarios = ON_S3 if store == "s3" else SCENARIOS
    (scenario,) = [scenario for scenario in scenarios if scenario.name == name]
    with ExitStack() as stack:
        services = stack.enter_context(Services.running())
        pool = stack.enter_context(open_installation_pool(services, 1))
        if store == "s3":
            stack.enter_context(pool.on_s3(stack.enter_context(S3Server.running())))
        return run(_repeat(pool, scenario, target, point))


async def _repeat(pool: InstallationPool, scenario: Scenario, target: str, point: tuple[str, ...]) -> int:
    async with pool.installations[0].connected() as installation:
        if not target:
            for recorded in await record_points(installation, scenario):
                print("\t".join(recorded))
            return 0
        crash = Cell(target, (CrashPoint(*point),)).crash
        optional = depends_on_time(scenario, crash.point.step)
        outcome = await run_with_crash(installation, scenario, crash, pool.hashes, optional=optional)
        print(f"{outcome.summary} after {outcome.seconds:.2f} s\n\n{await installation.diagnostics()}")
        return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
