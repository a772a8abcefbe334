"""The workspace that a call means."""

from codehub.client import AsyncClient, AsyncWorkspace, InvalidRequest

_MOST_NAMES = 20


class WorkspaceFinder:
    """Finder of workspaces by name or id. A bound one knows only its own."""

    def __init__(self, client: AsyncClient, bound_to: str | None = None) -> None:
        self.client = client
        self._bound_to = bound_to
        self._bound_id = ""

    @property
    def is_bound(self) -> bool:
        return self._bound_to is not None

    async def find(self, name: str) -> AsyncWorkspace:
        """Return a workspace. Without a name, it is the bound one, or the only one."""
        if self._bound_to is not None:
            return await self._find_bound(self._bound_to, name)
        return await self.client.workspaces.find(name) if name else await self._find_only()

    async def all(self) -> list[AsyncWorkspace]:
        return [await self.find("")] if self.is_bound else [*await self.client.workspaces.list()]

    async def _find_bound(self, bound_to: str, name: str) -> AsyncWorkspace:
        # By its id after the first call: whatever gets its name later is another workspace.
        found = await self.client.workspaces.find(self._bound_id or bound_to)
        self._bound_id = found.id
        if name not in ("", found.id, found.name):
            raise InvalidRequest(
                422, "VALIDATION_ERROR", f"Only the workspace {found.name!r} can be used here, not {name!r}."
            )
        return found

    async def _find_only(self) -> AsyncWorkspace:
        every = await self.all()
        if len(every) == 1:
            return every[0]
        if not every:
            raise InvalidRequest(
                422, "VALIDATION_ERROR", "There is no workspace. Call create_workspace first."
            )
        names = ", ".join(each.name for each in every[:_MOST_NAMES])
        more = f" and {len(every) - _MOST_NAMES} more" if len(every) > _MOST_NAMES else ""
        raise InvalidRequest(
            422,
            "VALIDATION_ERROR",
            f"There are {len(every)} workspaces: {names}{more}. Name one as `workspace`.",
        )
