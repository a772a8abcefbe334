"""Names in a state: which are used, and how to close the gaps between them."""

from typing import Any

from tests.simulation.model.state_parts import Arc, Op, Stamp

FAMILIES = {Op: 0, Arc: 16, Stamp: 32}
"""Offset of each family's sixteen bits in a mask, one bit per name."""

_BITS = 0xFFFF


def mask_of(value: Any) -> int:
    shift = FAMILIES.get(type(value))
    if shift is not None:
        assert 1 <= value <= 16, f"too many names: {value!r}"
        return 1 << (shift + value - 1)
    mask = 0
    if isinstance(value, tuple):
        for item in value:
            mask |= mask_of(item)
    return mask


def renaming(mask: int) -> dict[type, dict[int, int]] | None:
    """Return the renaming that closes the gaps of unused names, or None if there are no gaps."""
    names, gaps = {}, False
    for family, shift in FAMILIES.items():
        used = [number + 1 for number in range(16) if mask >> shift & 1 << number]
        names[family] = {old: family(new) for new, old in enumerate(used, 1)}
        gaps = gaps or used != list(range(1, len(used) + 1))
    return names if gaps else None


def renamed(value: Any, names: dict[type, dict[int, int]]) -> Any:
    family = names.get(type(value))
    if family is not None:
        return family[value]
    if isinstance(value, tuple):
        items = [renamed(item, names) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def fresh_names(mask: int) -> tuple[Op, Arc]:
    """Return the next op_id and archive_op_id, later than all that are used."""
    return Op((mask & _BITS).bit_length() + 1), Arc((mask >> FAMILIES[Arc] & _BITS).bit_length() + 1)
