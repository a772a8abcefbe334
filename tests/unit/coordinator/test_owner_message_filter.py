"""Messages of providers, as owners and as the log receive them."""

from structlog.testing import capture_logs

from codehub.coordinator.owner_message_filter import OwnerMessageFilter
from codehub.domain.observation import JobFact, JobState, Unknown, VolumeFact
from codehub.domain.path_redaction import PathRedactor

MESSAGES = {"/data": "the data directory"}


def test_the_log_has_each_message_in_full_once() -> None:
    messages = OwnerMessageFilter(PathRedactor(MESSAGES))
    with capture_logs() as logged:
        for _ in range(3):
            assert messages.redact_message("/data/x is gone") == "the data directory is gone"
        assert messages.redact_message("nothing to hide") == "nothing to hide"
    assert [line["problem"] for line in logged] == ["/data/x is gone"]


def test_facts_with_a_message_are_filtered_and_others_stay() -> None:
    messages = OwnerMessageFilter(PathRedactor(MESSAGES))
    job = JobFact(JobState.FAILED, None, None, "/data/jobs is full")
    assert messages.redact_fact(job).message == "the data directory is full"
    assert messages.redact_fact(Unknown("/data: no")) == Unknown("the data directory: no")
    home = VolumeFact(None)
    assert messages.redact_fact(home) is home
    assert messages.redact_fact(None) is None
