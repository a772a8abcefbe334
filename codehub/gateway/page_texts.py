"""Texts of the gateway's pages, in every language of CodeHub."""

from typing import Final, Literal

Language = Literal["en", "ko"]

TEXTS: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "home": "All workspaces",
        "unreachable": "CodeHub does not answer. Trying again…",
        "loading.heading": "Your workspace is on its way",
        "loading.message": "It opens here as soon as it is ready.",
        "archived.heading": "This workspace is archived",
        "archived.message": "Its home is safe in the archive. Restoring brings it back as it was.",
        "archived.button": "Restore and open",
        "pending.heading": "This workspace has not been started",
        "pending.message": "It has no home yet, or its start was cancelled.",
        "pending.button": "Start",
        "backend.heading": "This workspace cannot be opened at the moment",
        "backend.message": "Its files are kept. The reason:",
        "error.heading": "This workspace needs your attention",
        "error.message": "What went wrong:",
        "error.unknown": "The cause is not known.",
        "error.look_again": "Recover",
        "error.home": "Recover with the home that is there",
        "error.choose": "If that does not help, choose what to restore:",
        "lost.message": "Its home is gone. Choose what to restore:",
        "lost.archive": "Archive of {date}",
        "lost.restore": "Restore",
        "lost.empty": "Start with an empty home",
        "limit.heading": "Too many workspaces are running",
        "limit.message": "Stop one of these to make room; this page then starts the workspace.",
        "limit.others": "The server is at capacity. Try again in a while.",
        "limit.stop": "Stop",
        "limit.going": "Stopping…",
        "limit.broken": "In error: recover or delete it",
        "refused.heading": "That cannot be done now",
        "stopped.heading": "This workspace was stopped, or could not start",
        "stopped.button": "Start",
        "disk.full": "The home is full: {used} of {quota} used.",
        "disk.used": "The home uses {used}.",
        "disk.largest": "This uses the most space:",
        "missing.heading": "Workspace not found",
        "missing.message": "It was deleted, or the address is not right.",
        "forbidden.heading": "This workspace belongs to someone else",
        "forbidden.message": "Only its owner can open it.",
        "sessions.heading": "Sign in again",
        "sessions.message": "Your browser sent two session cookies. A page at another address may have set "
        "one of them, so CodeHub cleared both. If this page comes back, delete this site's cookies in your "
        "browser.",
        "sessions.button": "Sign in",
        "cookies.heading": "Your browser sent too many cookies",
        "cookies.message": "A page at another address may have set them. CodeHub cleared this site's "
        "cookies. Try again, several times if there are very many. If that fails, delete them by hand.",
        "token.heading": "This address holds a CodeHub token",
        "token.message": "CodeHub did not pass it on, because the workspace would see the token. Remove the "
        "token from the address. If others have seen the address, revoke the token.",
        "ticket.heading": "This link does not open here",
        "ticket.message": "It was issued to another browser and opens a workspace only there. This also "
        "happens if your browser blocks cookies for {host}: allow them. The button opens the workspace here.",
        "ticket.button": "Open the workspace",
        "gone.heading": "The workspace does not answer",
        "gone.message": "It runs, but nothing answered. It may be restarting.",
        "fields.heading": "The workspace answered with too many header fields",
        "fields.message": "CodeHub relays at most 256 of them. Make the program that answered send fewer, "
        "for example fewer cookies.",
        "silent.heading": "Nothing listens on port {port} yet",
        "silent.message": "Start the app in the workspace. It appears here as soon as it answers.",
        "silent.container": "In a container it has to listen on 0.0.0.0; on 127.0.0.1 only the workspace "
        "itself reaches it.",
        "ports.heading": "Ports are off for this workspace",
        "ports.message": "It was started without its own network, so its ports would be those of the whole "
        "machine. On a machine that supports such a network, stop it and start it again.",
        "noport.heading": "There is no such port",
        "noport.message": "A port is a number from 1 to 65535, in plain digits.",
        "down.heading": "CodeHub does not answer",
        "down.message": "It may be starting. Try again in a moment.",
        "full.heading": "CodeHub has no disk space left",
        "full.message": "Nothing could be saved, and nothing has changed. Ask an admin to free space on the "
        "disk of CodeHub, then try again.",
        "again": "Try again",
        "elsewhere.heading": "There is nothing at this address",
        "elsewhere.message": "CodeHub is at {url}.",
        "WAITING": "Waiting to start…",
        "PROVISIONING": "Preparing the home…",
        "RESTORING": "Restoring the home from its archive…",
        "STARTING": "Starting…",
        "STOPPING": "Stopping first…",
        "ARCHIVING": "Archiving first…",
        "CREATE_EMPTY_ARCHIVE": "Preparing an archive first…",
        "DELETING": "Deleting…",
    },
    "ko": {
        "home": "모든 워크스페이스",
        "unreachable": "CodeHub가 응답하지 않습니다. 다시 시도하는 중…",
        "loading.heading": "워크스페이스를 준비하고 있습니다",
        "loading.message": "준비되면 자동으로 열립니다.",
        "archived.heading": "보관된 워크스페이스입니다",
        "archived.message": "홈은 보관본에 안전하게 있습니다. 복원하면 그대로 돌아옵니다.",
        "archived.button": "복원하고 열기",
        "pending.heading": "아직 시작하지 않은 워크스페이스입니다",
        "pending.message": "아직 홈이 없거나, 시작이 취소되었습니다.",
        "pending.button": "시작",
        "backend.heading": "지금은 이 워크스페이스를 열 수 없습니다",
        "backend.message": "파일은 그대로 보관되어 있습니다. 이유:",
        "error.heading": "워크스페이스에 확인이 필요합니다",
        "error.message": "발생한 문제:",
        "error.unknown": "원인을 알 수 없습니다.",
        "error.look_again": "복구",
        "error.home": "지금 있는 홈으로 복구",
        "error.choose": "그래도 해결되지 않으면 복구할 시점을 선택하세요.",
        "lost.message": "홈이 사라졌습니다. 복구할 시점을 선택하세요.",
        "lost.archive": "{date} 보관본",
        "lost.restore": "복원",
        "lost.empty": "빈 홈으로 시작",
        "limit.heading": "실행 중인 워크스페이스가 너무 많습니다",
        "limit.message": "아래에서 하나를 중지하면 자리가 나고, 이 페이지가 워크스페이스를 시작합니다.",
        "limit.others": "서버가 가득 찼습니다. 잠시 뒤에 다시 시도하세요.",
        "limit.stop": "중지",
        "limit.going": "중지하는 중…",
        "limit.broken": "오류 상태: 복구하거나 삭제하세요",
        "refused.heading": "지금은 할 수 없습니다",
        "stopped.heading": "워크스페이스가 중지되었거나 시작하지 못했습니다",
        "stopped.button": "시작",
        "disk.full": "홈이 가득 찼습니다. {quota} 중 {used}를 쓰고 있습니다.",
        "disk.used": "홈의 크기는 {used}입니다.",
        "disk.largest": "가장 많은 공간을 차지하는 항목:",
        "missing.heading": "워크스페이스를 찾을 수 없습니다",
        "missing.message": "삭제되었거나 주소가 올바르지 않습니다.",
        "forbidden.heading": "다른 사람의 워크스페이스입니다",
        "forbidden.message": "소유자만 열 수 있습니다.",
        "sessions.heading": "다시 로그인하세요",
        "sessions.message": "브라우저가 세션 쿠키를 두 개 보냈습니다. 그중 하나는 다른 주소의 페이지가 "
        "설정했을 수 있어 CodeHub가 둘 다 지웠습니다. 이 페이지가 다시 나오면 브라우저에서 이 사이트의 "
        "쿠키를 삭제하세요.",
        "sessions.button": "로그인",
        "cookies.heading": "브라우저가 쿠키를 너무 많이 보냈습니다",
        "cookies.message": "다른 주소의 페이지가 설정했을 수 있어 CodeHub가 이 사이트의 쿠키를 지웠습니다. "
        "다시 시도하세요. 쿠키가 아주 많으면 여러 번 시도해야 할 수 있습니다. 그래도 열리지 않으면 "
        "브라우저에서 쿠키를 삭제하세요.",
        "token.heading": "주소에 CodeHub 토큰이 들어 있습니다",
        "token.message": "워크스페이스가 토큰을 볼 수 있으므로 CodeHub가 요청을 전달하지 않았습니다. "
        "주소에서 토큰을 지우세요. 다른 사람이 이 주소를 보았다면 토큰을 폐기하세요.",
        "ticket.heading": "이 링크는 여기에서 열 수 없습니다",
        "ticket.message": "다른 브라우저에서 만들어진 링크는 그 브라우저에서만 워크스페이스를 엽니다. "
        "브라우저가 {host}의 쿠키를 차단할 때에도 이 페이지가 나오니, 차단했다면 허용하세요. "
        "아래 버튼을 누르면 여기에서 워크스페이스를 엽니다.",
        "ticket.button": "워크스페이스 열기",
        "gone.heading": "워크스페이스가 응답하지 않습니다",
        "gone.message": "실행 중이지만 응답이 없습니다. 다시 시작하는 중일 수 있습니다.",
        "fields.heading": "워크스페이스의 응답에 헤더 필드가 너무 많습니다",
        "fields.message": "CodeHub는 헤더 필드를 256개까지 전달합니다. "
        "응답한 프로그램에서 쿠키 같은 헤더 필드를 줄이세요.",
        "silent.heading": "아직 포트 {port}에서 응답하는 앱이 없습니다",
        "silent.message": "워크스페이스에서 앱을 시작하세요. 응답하면 자동으로 열립니다.",
        "silent.container": "컨테이너에서는 앱이 0.0.0.0에서 대기해야 합니다. "
        "127.0.0.1은 워크스페이스 안에서만 닿을 수 있습니다.",
        "ports.heading": "이 워크스페이스에서는 포트를 열 수 없습니다",
        "ports.message": "자체 네트워크 없이 시작되어, 그 포트는 이 컴퓨터 전체의 포트와 같습니다. "
        "자체 네트워크를 쓸 수 있는 컴퓨터라면 중지했다가 다시 시작하세요.",
        "noport.heading": "그런 포트가 없습니다",
        "noport.message": "포트는 1에서 65535 사이의 숫자입니다.",
        "down.heading": "CodeHub가 응답하지 않습니다",
        "down.message": "시작하는 중일 수 있습니다. 잠시 뒤에 다시 시도하세요.",
        "full.heading": "CodeHub의 디스크가 가득 찼습니다",
        "full.message": "저장하지 못해 아무것도 바뀌지 않았습니다. "
        "관리자에게 CodeHub의 디스크 공간을 확보해 달라고 한 뒤 다시 시도하세요.",
        "again": "다시 시도",
        "elsewhere.heading": "이 주소에는 아무것도 없습니다",
        "elsewhere.message": "CodeHub의 주소는 {url} 입니다.",
        "WAITING": "시작을 기다리는 중…",
        "PROVISIONING": "홈을 준비하는 중…",
        "RESTORING": "보관본에서 홈을 복원하는 중…",
        "STARTING": "시작하는 중…",
        "STOPPING": "먼저 중지하는 중…",
        "ARCHIVING": "먼저 보관하는 중…",
        "CREATE_EMPTY_ARCHIVE": "먼저 보관본을 준비하는 중…",
        "DELETING": "삭제하는 중…",
    },
}


_MAX_ACCEPTED: Final = 16
"""How many languages of a browser's list are read."""


def language_of(cookie: bytes, accepted: bytes) -> Language:
    """Return the language chosen in the dashboard, or else the browser's first one of ours."""
    if cookie in (b"en", b"ko"):
        return "ko" if cookie == b"ko" else "en"
    for part in accepted.split(b",", _MAX_ACCEPTED)[:_MAX_ACCEPTED]:
        name = part.partition(b";")[0].strip().lower()[:2]
        if name in (b"en", b"ko"):
            return "ko" if name == b"ko" else "en"
    return "en"
