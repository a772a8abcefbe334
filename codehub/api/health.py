"""`/healthz`: liveness. Readiness and metrics are on the internal listener."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from codehub.asgi.errors import error_responses

router = APIRouter(tags=["health"], responses=error_responses())


class Alive(BaseModel):
    status: Literal["ok"]


@router.get("/healthz")
async def healthz() -> Alive:
    """Answer while the API runs, whatever state its database is in."""
    return Alive(status="ok")
