"""`/images`: the images that a workspace can be created from."""

from fastapi import APIRouter
from pydantic import BaseModel

from codehub.api.services import Shared
from codehub.asgi.callers import ReadCaller

router = APIRouter(prefix="/images", tags=["images"])


class ImageView(BaseModel):
    name: str
    title: str
    default: bool


class Images(BaseModel):
    items: list[ImageView]


@router.get("")
async def list_images(_caller: ReadCaller, services: Shared) -> Images:
    """Return the images that a workspace can be created from."""
    config = services.config
    return Images(
        items=[
            ImageView(name=image.name, title=image.title, default=image.name == config.default_image)
            for image in config.images
        ]
    )
