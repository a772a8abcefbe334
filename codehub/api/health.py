"""`/healthz`: whether the API answers. Readiness and metrics are on the internal listener."""

from fastapi import APIRouter
from pydantic import BaseModel

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    status: str = "ok"


@router.get("/healthz")
async def healthz() -> Alive:
    return Alive()
