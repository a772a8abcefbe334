"""Configuration of JupyterLab behind CodeHub, with one image for both modes of the gateway.

JupyterLab writes absolute paths into its pages, so its base URL is the one of the path mode:
/w/{id}/. In that mode the gateway removes this prefix before it forwards a request, and the code
below restores it. On a separate origin the browser requests /w/{id}/ after the first redirect.
"""

import os

from tornado.httputil import HTTPServerRequest
from tornado.web import Application

c = get_config()  # noqa: F821 - Jupyter defines it
BASE = f"/w/{os.environ['CODEHUB_WORKSPACE_ID']}/"

_find_handler = Application.find_handler


def _find_below_base(application, request: HTTPServerRequest, **kwargs):
    if not request.path.startswith(BASE):
        request.uri = BASE + request.uri.lstrip("/")
        request.path = BASE + request.path.lstrip("/")
    return _find_handler(application, request, **kwargs)


Application.find_handler = _find_below_base

c.ServerApp.base_url = BASE
# The gateway has authenticated each request. Nothing else can connect.
c.IdentityProvider.token = ""
c.PasswordIdentityProvider.hashed_password = ""
c.PasswordIdentityProvider.password_required = False
c.ServerApp.allow_remote_access = True
c.ServerApp.open_browser = False
c.ServerApp.root_dir = os.environ["HOME"]
c.LabApp.extension_manager = "readonly"
