/**
 * Entries of the audit log as sentences. The server sends codes and parameters; the text is made
 * here.
 */
import { bytes, exactTime, span } from "./format";
import { messages } from "./i18n";
import { auditEn } from "./i18n/audit.en";
import type { AuditAction, AuditEntry, Role } from "./types";

export const AUDIT_ACTIONS = Object.keys(auditEn.labels) as AuditAction[];

export type Weakness =
  | "path_mode"
  | "plain_http"
  | "insecure_process_runtime"
  | "docker_firewall_off"
  | "private_egress"
  | "wide_trusted_proxies"
  | "api_as_root"
  | "access_as_root"
  | "gateway_as_root"
  | "unconfined_image"
  | "no_disk_reserve"
  | "no_part_watchdog";

/** The parameters of sentences. One is empty if an entry has no such detail. */
export interface AuditFacts {
  target: string;
  /** The owner of the workspace or token, or empty if the actor owns it. */
  otherOwner: string;
  role: string;
  isService: boolean;
  scopes: string;
  before: string;
  after: string;
  source: string;
  failures: string;
  lockedFor: string;
  since: string;
  until: string;
  workspaces: string;
  perUser: string;
  inAll: string;
  owned: string;
  /** The limit of archives in one user's name, or empty if there is none. */
  archived: string;
  weaknesses: string;
}

export const isKnown = (action: string): action is AuditAction =>
  (AUDIT_ACTIONS as readonly string[]).includes(action);

export function auditSentence(entry: AuditEntry): string {
  const { action, target } = entry;
  // A newer server may have more actions than this page.
  if (!isKnown(action)) return target ? `${action}: ${target.name}` : action;
  return messages.value.audit.sentences[action](factsOf(entry));
}

export function auditActor({ actor }: AuditEntry): string {
  const names = messages.value.audit.actors;
  switch (actor.kind) {
    case "anonymous":
      return names.anonymous;
    case "cli":
      return names.cli;
    case "system":
      return `${names.system} (${actor.name})`;
    default:
      return actor.name;
  }
}

function factsOf({ actor, target, details }: AuditEntry): AuditFacts {
  const detail = (name: string) => String(details[name] ?? "");
  const time = (name: string) => (details[name] ? exactTime(detail(name)) : "");
  const owner = detail("owner");
  // What a token did has the name of the token after that of its user.
  const isOwn = actor.name === owner || actor.name.startsWith(`${owner} (token `);
  return {
    target: target?.name ?? "",
    otherOwner: isOwn ? "" : owner,
    role: roleName(detail("role")),
    isService: detail("service") !== "",
    scopes: [details.scopes ?? []].flat().join(", "),
    before: roleName(detail("before")),
    after: roleName(detail("after")),
    source: detail("source"),
    failures: detail("failures"),
    lockedFor: span(Number(details.seconds ?? 0)),
    since: time("since"),
    until: time("until"),
    workspaces: detail("workspaces"),
    perUser: detail("max_running_per_user"),
    inAll: detail("max_running_global"),
    owned: detail("max_workspaces_per_user"),
    archived: Number(details.max_archive_bytes_per_user ?? 0)
      ? bytes(Number(details.max_archive_bytes_per_user))
      : "",
    weaknesses: weaknessNames(details.settings),
  };
}

function roleName(role: string): string {
  const roles: Record<string, string> = messages.value.roles satisfies Record<Role, string>;
  return roles[role] ?? role;
}

function weaknessNames(codes: unknown): string {
  const names: Record<string, string> = messages.value.audit.weaknesses;
  return Array.isArray(codes) ? codes.map((code: string) => names[code] ?? code).join(", ") : "";
}
