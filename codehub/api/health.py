"""`/healthz`: liveness. Readiness and metrics are on the internal listener."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    status: Literal["ok"]


@router.get("/healthz")
async def healthz() -> Alive:
    return Alive(status="ok")
