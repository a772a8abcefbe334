"""The form of tokens, and which requests have a Bearer token."""

import pytest

from codehub.domain.token_format import bearer_token, is_token, without_tokens

TOKEN = "chub_" + "aZ09_-xy" * 5


@pytest.mark.parametrize(
    "text", [TOKEN[:-1], TOKEN + "a", "chp_" + "a" * 40, "", TOKEN[:-1] + "!", TOKEN + "\n"]
)
def test_only_tokens_have_the_form_of_a_token(text: str) -> None:
    assert is_token(TOKEN)
    assert not is_token(text)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("space", [" ", "  ", "\t"])
def test_the_scheme_is_read_in_any_case(scheme: str, space: str) -> None:
    assert bearer_token([f" {scheme}{space}{TOKEN} "]) == TOKEN


@pytest.mark.parametrize("fields", [[], ["Basic dXNlcjpwdw=="], ["Bearers x"], ["Token chub_x"], [""]])
def test_other_schemes_are_no_bearer_token(fields: list[str]) -> None:
    assert bearer_token(fields) is None


def test_a_bearer_token_that_is_empty_or_one_of_several_is_unusable() -> None:
    assert bearer_token(["Bearer"]) == ""
    assert bearer_token([f"Bearer {TOKEN}", "Basic dXNlcjpwdw=="]) == ""
    assert bearer_token(["Basic dXNlcjpwdw==", f"Bearer {TOKEN}"]) == ""


def test_a_text_for_logs_has_no_token() -> None:
    assert without_tokens(f"?a={TOKEN}&b={TOKEN}x") == "?a=chub_…&b=chub_…x"
    assert without_tokens("chub_notes.md") == "chub_notes.md"
