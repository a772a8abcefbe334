"""Settings that give up some of the security that CodeHub has by default."""

from enum import StrEnum
from typing import Final


class Weakness(StrEnum):
    """Named in the audit log and in the dashboard's texts."""

    PATH_MODE = "path_mode"
    PLAIN_HTTP = "plain_http"
    INSECURE_PROCESS_RUNTIME = "insecure_process_runtime"
    DOCKER_FIREWALL_OFF = "docker_firewall_off"
    PRIVATE_EGRESS = "private_egress"


OF_PART: Final = {
    "gateway": frozenset((Weakness.PATH_MODE, Weakness.PLAIN_HTTP)),
    "coordinator": frozenset(
        (Weakness.INSECURE_PROCESS_RUNTIME, Weakness.DOCKER_FIREWALL_OFF, Weakness.PRIVATE_EGRESS)
    ),
}
"""Which part each setting is for. Other parts may not have it in their environment."""
