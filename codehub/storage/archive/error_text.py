"""Readable messages for errors of the store library, which adds its internals to each one."""

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
    """Return the cause of a failed request in words that an operator can act on."""
    message = str(error).strip()
    if status := _STATUS.search(message):
        code = _CODE.search(message)
        return f"it answered {status[1].strip()}" + (f" ({code[1]})" if code else "")
    for sign, cause in _CAUSES.items():
        if sign in message:
            return cause
    return message.partition("\n")[0]
