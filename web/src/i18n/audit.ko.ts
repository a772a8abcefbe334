import type { AuditFacts } from "../audit";
import type { Messages } from "./en";

const sources: Record<string, string> = { archive: "보관본으로 ", empty: "빈 홈으로 " };
const workspace = (facts: AuditFacts) =>
  `${facts.otherOwner ? `${facts.otherOwner} 사용자의 ` : ""}${facts.target} 워크스페이스를`;

export const auditKo: Messages["audit"] = {
  title: "감사 로그",
  action: "동작",
  allActions: "모든 동작",
  actor: "행위자",
  actorPlaceholder: "사용자 이름",
  time: "시각",
  what: "내용",
  address: "주소",
  none: "조건에 맞는 기록이 없습니다.",
  more: "더 보기",
  loading: "불러오는 중…",
  shown: (n) => `${n}개 표시`,
  actors: { anonymous: "로그인하지 않음", cli: "명령줄", system: "CodeHub" },
  labels: {
    "session.opened": "로그인",
    "session.failed": "로그인 실패",
    "session.locked": "로그인 잠김",
    "session.confirmation_failed": "확인용 비밀번호 오류",
    "session.failures_counted": "그 밖의 로그인 실패",
    "user.created": "사용자 추가",
    "user.deleted": "사용자 삭제",
    "user.role_changed": "역할 변경",
    "user.password_changed": "본인 비밀번호 변경",
    "user.password_set": "비밀번호 설정",
    "token.created": "토큰 만듦",
    "token.revoked": "토큰 폐기",
    "workspace.stopped": "관리자의 워크스페이스 중지",
    "workspace.recovered": "워크스페이스 복구",
    "workspace.restored": "보관본 복원",
    "workspace.deleted": "워크스페이스 삭제",
    "workspace.deleted_for_good": "워크스페이스 영구 삭제",
    "workspace.undeleted": "워크스페이스를 휴지통에서 복원",
    "limits.changed": "한도 변경",
    "security.weakened": "보안 약화",
    "security.restored": "보안 회복",
  },
  sentences: {
    "session.opened": () => "로그인했습니다",
    "session.failed": ({ target }) =>
      target ? `${target} 계정으로 로그인하지 못했습니다` : "없는 사용자 이름으로 로그인하려 했습니다",
    "session.locked": ({ target, failures, lockedFor }) =>
      `${target ? `${target} 계정의 ` : ""}비밀번호를 ${failures}번 틀려 ${lockedFor} 동안 잠겼습니다`,
    "session.confirmation_failed": () => "변경을 확인하는 비밀번호를 틀렸습니다",
    "session.failures_counted": ({ failures, since, until }) =>
      `${since}부터 ${until}까지 따로 기록하지 않은 비밀번호 오류가 ${failures}번 있었습니다`,
    "user.created": ({ target, role, isService }) =>
      isService ? `${target} 서비스 계정을 추가했습니다` : `${target} 사용자를 추가했습니다 (${role})`,
    "user.deleted": ({ target, workspaces }) =>
      `${target} 사용자를 삭제했습니다 (워크스페이스 ${workspaces}개)`,
    "user.role_changed": ({ target, before, after }) =>
      `${target} 사용자의 역할을 바꿨습니다 (${before} → ${after})`,
    "user.password_changed": () => "자신의 비밀번호를 변경했습니다",
    "user.password_set": ({ target }) => `${target} 사용자의 비밀번호를 새로 설정했습니다`,
    "token.created": ({ target, otherOwner, scopes }) =>
      `${otherOwner ? `${otherOwner} 사용자의 ` : ""}${target} 토큰을 만들었습니다 (${scopes})`,
    "token.revoked": ({ target, otherOwner }) =>
      `${otherOwner ? `${otherOwner} 사용자의 ` : ""}${target} 토큰을 폐기했습니다`,
    "workspace.stopped": (facts) => `${workspace(facts)} 중지했습니다`,
    "workspace.recovered": (facts) => `${workspace(facts)} ${sources[facts.source] ?? ""}복구했습니다`,
    "workspace.restored": (facts) => `${workspace(facts)} 이전 보관본으로 복원했습니다`,
    "workspace.deleted": (facts) => `${workspace(facts)} 삭제했습니다`,
    "workspace.deleted_for_good": (facts) => `${workspace(facts)} 보관본 없이 영구 삭제했습니다`,
    "workspace.undeleted": (facts) => `${workspace(facts)} 휴지통에서 복원했습니다`,
    "limits.changed": ({ perUser, inAll, owned, archived }) =>
      `새 한도로 시작했습니다: 동시 실행 사용자당 ${perUser}개, 전체 ${inAll}개, 워크스페이스 사용자당 ${owned}개` +
      (archived && `, 보관본 사용자당 ${archived}`),
    "security.weakened": ({ weaknesses }) => `보안이 약한 설정으로 시작했습니다: ${weaknesses}`,
    "security.restored": () => "보안을 약하게 하는 설정 없이 시작했습니다",
  },
  weaknesses: {
    path_mode: "경로 모드 (APPS_DOMAIN이 비어 있음)",
    plain_http: "https 없음",
    insecure_process_runtime: "워크스페이스 격리 없음 (INSECURE_PROCESS_RUNTIME)",
    docker_firewall_off: "방화벽 꺼짐 (DOCKER_FIREWALL)",
    private_egress: "워크스페이스에 사설망 허용 (WORKSPACE_ALLOW_EGRESS)",
    wide_trusted_proxies: "클라이언트가 주소를 위조할 수 있음 (TRUSTED_PROXIES)",
    api_as_root: "API가 root로 실행됨 (API_UID)",
    access_as_root: "접근 프로세스가 root로 실행됨 (ACCESS_UID)",
    gateway_as_root: "게이트웨이가 root로 실행됨 (GATEWAY_UID)",
    unconfined_image: '시스템 호출 필터가 없는 이미지 (seccomp = "unconfined")',
    no_disk_reserve: "디스크 예비 공간 없음 (DISK_RESERVE_BYTES, DISK_RESERVE_FILES)",
    no_part_watchdog: "멈춘 구성 요소를 다시 시작하지 않음 (PART_TIMEOUT_SECONDS)",
  },
};
