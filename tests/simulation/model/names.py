"""Names in a state: which are used, and how the gaps are closed that unused ones have left."""

from typing import Any

from tests.simulation.model.parts import Arc, Op, Stamp

FAMILIES = {Op: 0, Arc: 16, Stamp: 32}
"""Each family has sixteen bits of a mask, one for each name."""

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
    """How to close the gaps that names which nobody uses any more have left; None when there are none."""
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
    """The next op_id and archive_op_id: later than all that are used."""
    return Op((mask & _BITS).bit_length() + 1), Arc((mask >> FAMILIES[Arc] & _BITS).bit_length() + 1)
