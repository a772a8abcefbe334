"""What the store library reports, in words a person can act on: it appends its internals to each message."""

import re

_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]+)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_CAUSES = {
    "/latest/api/token": "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "kind: Timeout": "it did not answer in time",
    "Connection refused": "nothing listens there (connection refused)",
    "dns error": "its name cannot be resolved",
    "HTTP error": "the connection to it broke",
}


def store_error_message(error: Exception) -> str:
    said = str(error).strip()
    if status := _STATUS.search(said):
        code = _CODE.search(said)
        return f"it answered {status[1].strip()}" + (f" ({code[1]})" if code else "")
    for sign, words in _CAUSES.items():
        if sign in said:
            return words
    return said.partition("\n")[0]
