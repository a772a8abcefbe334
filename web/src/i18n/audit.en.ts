import type { AuditFacts, Weakness } from "../audit";
import type { AuditAction } from "../types";

const labels: Record<AuditAction, string> = {
  "session.opened": "Signed in",
  "session.failed": "Failed sign-in",
  "session.locked": "Locked sign-in",
  "session.confirmation_failed": "Wrong password to confirm",
  "session.failures_counted": "Further failed sign-ins",
  "user.created": "User created",
  "user.deleted": "User deleted",
  "user.role_changed": "Role changed",
  "user.password_changed": "Own password changed",
  "user.password_set": "Password set",
  "token.created": "Token made",
  "token.revoked": "Token revoked",
  "workspace.stopped": "Workspace stopped by an admin",
  "workspace.recovered": "Workspace recovered",
  "workspace.restored": "Archive restored",
  "workspace.deleted": "Workspace deleted",
  "workspace.deleted_for_good": "Workspace deleted for good",
  "workspace.undeleted": "Workspace restored from the trash",
  "limits.changed": "Limits changed",
  "security.weakened": "Security weakened",
  "security.restored": "Security restored",
};

const sources: Record<string, string> = { archive: " from an archive", empty: " with an empty home" };
const workspace = (facts: AuditFacts) =>
  `the workspace ${facts.target}${facts.otherOwner ? ` of ${facts.otherOwner}` : ""}`;

const sentences: Record<AuditAction, (facts: AuditFacts) => string> = {
  "session.opened": () => "Signed in",
  "session.failed": ({ target }) =>
    target ? `Failed to sign in as ${target}` : "Failed to sign in with an unknown user name",
  "session.locked": ({ target, failures, lockedFor }) =>
    `Entered a wrong password ${failures} times${target ? ` for ${target}` : ""}; locked for ${lockedFor}`,
  "session.confirmation_failed": () => "Entered a wrong password to confirm a change",
  "session.failures_counted": ({ failures, since, until }) =>
    `Wrong passwords without a separate entry: ${failures}, between ${since} and ${until}`,
  "user.created": ({ target, role, isService }) =>
    isService ? `Created the service account ${target}` : `Created the user ${target} (${role})`,
  "user.deleted": ({ target, workspaces }) => `Deleted the user ${target} (workspaces: ${workspaces})`,
  "user.role_changed": ({ target, before, after }) =>
    `Changed the role of ${target} from ${before} to ${after}`,
  "user.password_changed": () => "Changed their own password",
  "user.password_set": ({ target }) => `Set a new password for ${target}`,
  "token.created": ({ target, otherOwner, scopes }) =>
    `Made the token ${target}${otherOwner ? ` of ${otherOwner}` : ""} (${scopes})`,
  "token.revoked": ({ target, otherOwner }) =>
    `Revoked the token ${target}${otherOwner ? ` of ${otherOwner}` : ""}`,
  "workspace.stopped": (facts) => `Stopped ${workspace(facts)}`,
  "workspace.recovered": (facts) => `Recovered ${workspace(facts)}${sources[facts.source] ?? ""}`,
  "workspace.restored": (facts) => `Restored an archive of ${workspace(facts)}`,
  "workspace.deleted": (facts) => `Deleted ${workspace(facts)}`,
  "workspace.deleted_for_good": (facts) => `Deleted ${workspace(facts)} for good, without an archive`,
  "workspace.undeleted": (facts) => `Restored ${workspace(facts)} from the trash`,
  "limits.changed": ({ perUser, inAll, owned, archived }) =>
    `Started with new limits: ${perUser} running per user, ${inAll} in total, ${owned} workspaces per user` +
    (archived && `, ${archived} of archives per user`),
  "security.weakened": ({ weaknesses }) => `Started with weaker security: ${weaknesses}`,
  "security.restored": () => "Started without settings that weaken security",
};

const weaknesses: Record<Weakness, string> = {
  path_mode: "path mode (APPS_DOMAIN is empty)",
  plain_http: "no https",
  insecure_process_runtime: "workspaces without isolation (INSECURE_PROCESS_RUNTIME)",
  docker_firewall_off: "no firewall (DOCKER_FIREWALL)",
  private_egress: "private networks open to workspaces (WORKSPACE_ALLOW_EGRESS)",
  wide_trusted_proxies: "clients can forge their address (TRUSTED_PROXIES)",
  api_as_root: "the API runs as root (API_UID)",
  access_as_root: "the access part runs as root (ACCESS_UID)",
  gateway_as_root: "the gateway runs as root (GATEWAY_UID)",
  unconfined_image: 'an image without a system call filter (seccomp = "unconfined")',
  no_disk_reserve: "no disk reserve (DISK_RESERVE_BYTES, DISK_RESERVE_FILES)",
  no_part_watchdog: "parts that hang are not restarted (PART_TIMEOUT_SECONDS)",
};

export const auditEn = {
  title: "Audit log",
  action: "Action",
  allActions: "All actions",
  actor: "Who",
  actorPlaceholder: "User name",
  time: "Time",
  what: "What happened",
  address: "Address",
  none: "No entry matches.",
  more: "Load more",
  loading: "Loading…",
  shown: (n: number) => `${n} shown`,
  actors: { anonymous: "Not signed in", cli: "Command line", system: "CodeHub" },
  labels,
  sentences,
  weaknesses,
};
