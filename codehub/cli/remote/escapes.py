"""The key sequence that leaves a terminal, as in ssh: ~. at the beginning of a line."""

from typing import Final

_TILDE: Final = ord("~")
_DOT: Final = ord(".")
_LINE_ENDS: Final = b"\r\n"


class Escapes:
    """Filter of what is typed. `~~` at the beginning of a line is one `~`."""

    def __init__(self) -> None:
        self._at_begin = True
        self._has_tilde = False

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Return what goes to the command, and whether the user leaves."""
        passed = bytearray()
        for byte in data:
            if self._has_tilde:
                self._has_tilde = False
                if byte == _DOT:
                    return bytes(passed), True
                if byte != _TILDE:
                    passed.append(_TILDE)
            elif self._at_begin and byte == _TILDE:
                self._has_tilde = True
                continue
            passed.append(byte)
            self._at_begin = byte in _LINE_ENDS
        return bytes(passed), False
