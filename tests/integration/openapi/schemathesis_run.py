"""A run of schemathesis against a running system, as a process of its own."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.selection import SEED
from tests.waiting import PATIENCE

HOOKS = Path(__file__).with_name("schemathesis_hooks.py")
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
    *("positive_data_acceptance", "missing_required_header", "unsupported_method"),
    *("allow_header_conformance", "use_after_free", "ensure_resource_availability", "ignored_auth"),
)
METHODS = ("GET", "PUT", "POST", "DELETE", "OPTIONS", "PATCH")
"""Those that a call may not have. The gateway itself refuses TRACE (test_request_head.py)."""


@dataclass(frozen=True)
class Credential:
    """A token, or the cookie of a session: the names are those of the document's security schemes."""

    scheme: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        if self.scheme == "token":
            return {"Authorization": f"Bearer {self.secret}"}
        return {"Cookie": f"session={self.secret}"}

    def to_toml(self) -> str:
        name = "bearer" if self.scheme == "token" else "api_key"
        return f"auth.openapi.{self.scheme}.{name} = {_toml(self.secret)}"


@dataclass(frozen=True)
class Run:
    """What to call, with which credential, and with which ids."""

    operations: Sequence[str]
    credential: "Credential"
    phases: str
    examples: int
    mode: str = "all"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Values of all operations, such as `path.workspace_id`."""
    own_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Values of an operation, in place of those."""
    may_reject: Mapping[str, str] = field(default_factory=dict)
    """Operations that may reject data that is valid by its schema, each with the reason."""

    of_trash: Sequence[str] = ()
    """Operations that find a thing also after it was deleted."""


@dataclass(frozen=True)
class Outcome:
    failed: bool
    output: str
    statuses: Mapping[str, "Counter[int]"]
    """How often each operation, such as `GET /healthz`, answered with each status."""

    @property
    def failures(self) -> str:
        """Return what the report says about failures, or all of it if the run has ended early."""
        return self.output[max(self.output.find("= FAILURES ="), 0) :]


def execute(run: Run, base_url: str, directory: Path) -> Outcome:
    """Run schemathesis, and return what it found. The seed is that of the selection of tests."""
    record = directory / "statuses"
    record.touch()
    (directory / "schemathesis.toml").write_text(_configuration(run))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run"),
        f"{base_url}/api/v1/openapi.json",
        *("--seed", str(SEED), "--phases", run.phases, "--mode", run.mode),
        *("--max-examples", str(run.examples), "--continue-on-failure", "--no-color"),
        *("--checks", ",".join(CHECKS), "--suppress-health-check", "all", "--output-truncate", "false"),
        *(part for operation in run.operations for part in ("--include-name", operation)),
    ]
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env=os.environ | {"SCHEMATHESIS_RECORD": str(record)},
    )  # fmt: skip
    statuses: dict[str, Counter[int]] = {}
    for line in record.read_text().splitlines():
        operation, status = json.loads(line)
        statuses.setdefault(operation, Counter())[status] += 1
    return Outcome(done.returncode != 0, done.stdout, statuses)


def _configuration(run: Run) -> str:
    # The gateway answers 400 if the header fields that a schema allows are too large together.
    accepted = [
        "2xx",
        "304",
        "400",
        "401",
        "403",
        "404",
        "409",
        "410",
        "412",
        "414",
        "416",
        "429",
        "431",
        "504",
    ]
    refused = ["400", "401", "403", "404", "405", "409", "412", "413", "414", "416", "422", "429", "431"]
    documented = ["2xx", "3xx", "4xx", "502", "503", "504", "507"]
    lines = [
        f"hooks = {_toml(str(HOOKS))}",
        f"request-timeout = {PATIENCE}",
        "max-stream-events = 1",
        run.credential.to_toml(),
        "[generation]",
        "with-security-parameters = false",
        'database = "none"',
        "[phases.coverage]",
        f"unexpected-methods = {_toml(METHODS)}",
        "[phases.stateful]",
        "max-steps = 6",
        "[checks.not_a_server_error]",
        f"expected-statuses = {_toml(documented)}",
        "[checks.positive_data_acceptance]",
        f"expected-statuses = {_toml(accepted)}",
        "[checks.negative_data_rejection]",
        f"expected-statuses = {_toml(refused)}",
        "[parameters]",
        *(f"{_toml(name)} = {_toml(value)}" for name, value in run.parameters.items()),
    ]
    for operation in dict.fromkeys((*run.own_parameters, *run.may_reject, *run.of_trash)):
        lines += ["[[operations]]", f"include-name = {_toml(operation)}"]
        if operation in run.may_reject:
            values = _toml([*accepted, "422"])
            lines.append(f"checks.positive_data_acceptance = {{ expected-statuses = {values} }}")
        if operation in run.of_trash:
            lines.append("checks.use_after_free.enabled = false")
        for name, value in run.own_parameters.get(operation, {}).items():
            lines.append(f"parameters.{_toml(name)} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Return a string, number or list as TOML, which writes these as JSON does."""
    return json.dumps(value)
