"""JupyterLab behind CodeHub, with one image for both modes of the gateway.

JupyterLab writes whole paths into its pages, so it is told the one below which the path mode serves it:
/w/{id}/. There the gateway takes that off before a request arrives here, and it is put back. On an origin of
its own the browser asks for /w/{id}/ by itself, after the first redirect.
"""

import os

from tornado.httputil import HTTPServerRequest
from tornado.web import Application

c = get_config()  # noqa: F821 - Jupyter's
BASE = f"/w/{os.environ['CODEHUB_WORKSPACE_ID']}/"

_find_handler = Application.find_handler


def _find_below_base(application, request: HTTPServerRequest, **kwargs):
    if not request.path.startswith(BASE):
        request.uri = BASE + request.uri.lstrip("/")
        request.path = BASE + request.path.lstrip("/")
    return _find_handler(application, request, **kwargs)


Application.find_handler = _find_below_base

c.ServerApp.base_url = BASE
# Whoever arrives here has passed the gateway, which alone can connect.
c.IdentityProvider.token = ""
c.PasswordIdentityProvider.hashed_password = ""
c.PasswordIdentityProvider.password_required = False
c.ServerApp.allow_remote_access = True
c.ServerApp.open_browser = False
c.ServerApp.root_dir = os.environ["HOME"]
c.LabApp.extension_manager = "readonly"
