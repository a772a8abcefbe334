/** The API's JSON, in the words of the specification. */

export type Phase = "PENDING" | "ARCHIVED" | "STANDBY" | "RUNNING" | "ERROR" | "DELETING" | "DELETED";

export type Operation =
  | "NONE"
  | "PROVISIONING"
  | "RESTORING"
  | "STARTING"
  | "STOPPING"
  | "ARCHIVING"
  | "CREATE_EMPTY_ARCHIVE"
  | "DELETING";

export type DesiredState = "PENDING" | "RUNNING" | "STANDBY" | "ARCHIVED" | "DELETED";

/** What a person can ask for; PENDING only results from a cancel. */
export type Wish = "RUNNING" | "STANDBY" | "ARCHIVED";

export type Role = "user" | "admin";

export interface User {
  id: string;
  username: string;
  role: Role;
}

export interface ListedUser extends User {
  created_at?: string;
  archive_bytes?: number;
}

export interface Session {
  user: User;
  limits: { max_running_per_user: number; running: number };
  archives: { bytes: number; max_bytes: number | null };
  ttl: { standby_seconds: number; archive_seconds: number };
  apps_mode: "origin" | "path";
  trash_retention_seconds: number;
}

export interface Condition {
  status: "True" | "False";
  reason: string;
  message: string;
  last_transition_time: string | null;
}

export interface Progress {
  bytes: number;
  total: number | null;
  files: number | null;
}

/** A home on the disk as it was last measured. */
export interface Home {
  bytes: number;
  entries: number;
  /** Whether all of it was measured; otherwise it is at least this large. */
  complete: boolean;
  quota_bytes: number | null;
  is_full: boolean;
  measured_at: string | null;
  /** Why the workspace was stopped for the disk, or will be. */
  notice: string | null;
}

export interface DetailedHome extends Home {
  largest: Array<{ name: string; bytes: number }>;
}

/** What can bring a workspace out of ERROR. */
export type RecoveryOption = "look_again" | "home" | "archive" | "empty";

/** Why a workspace is, or may soon be, in ERROR. */
export type ErrorReason =
  | "Timeout"
  | "DataLost"
  | "ImagePullFailed"
  | "ContainerWithoutVolume"
  | "ArchiveCorrupted"
  | "ActionFailed"
  | "Unreachable"
  | "RetryExceeded";

/** A workspace as lists and events carry it. */
export interface Workspace {
  id: string;
  name: string;
  description: string;
  image_ref: string;
  owner: { id: string; username: string };
  phase: Phase;
  operation: Operation;
  desired_state: DesiredState;
  conditions: Record<string, Condition>;
  error_reason: ErrorReason | null;
  error_count: number;
  error_message: string | null;
  ways_out: RecoveryOption[];
  /** Grows with every change, whatever the clocks say. */
  version: number;
  progress: Progress | null;
  home: Home | null;
  has_archive: boolean;
  url: string;
  created_at: string;
  updated_at: string;
  last_access_at: string;
  phase_changed_at: string | null;
  standby_at: string | null;
  archive_at: string | null;
  keep_until: string | null;
  standby_ttl_seconds: number | null;
  archive_ttl_seconds: number | null;
  deleted_at: string | null;
  purge_at: string | null;
  op_started_at: string | null;
}

export interface CurrentArchive {
  created_at: string;
  bytes: number;
}

/** One workspace by itself: with what is too long for lists. */
export interface DetailedWorkspace extends Workspace {
  memo: string;
  home: DetailedHome | null;
  archive: CurrentArchive | null;
}

export interface Page<T> {
  items: T[];
  total: number;
}

export interface TimelineEntry {
  at: string;
  actor: string;
  event: string;
  message: string;
  operation: Operation | null;
}

export interface Archive {
  archive_op_id: string;
  created_at: string;
  bytes: number | null;
  current: boolean;
}

export interface Image {
  name: string;
  title: string;
  default: boolean;
}

export interface Overview {
  phases: Partial<Record<Phase, number>>;
  running: number;
  limits: { max_running_per_user: number; max_running_global: number };
  users: number;
  leader: { holder: string; epoch: number; heartbeat_at: string | null } | null;
  errors: Workspace[];
  checks: Partial<Record<CheckName, Check>>;
  insecure_http: boolean;
  wide_trusted_proxies: boolean;
}

export type CheckName =
  | "database"
  | "schema"
  | "redis"
  | "database_space"
  | "coordinator"
  | "storage"
  | "archives"
  | "volumes"
  | "runtime"
  | "disk"
  | "gc";

export interface Check {
  ok: boolean;
  message: string;
  remedy: string;
}

export interface AuditEntry {
  id: number;
  at: string;
  actor: { kind: "user" | "admin" | "anonymous" | "cli" | "system"; id: string | null; name: string };
  address: string | null;
  /** One of AUDIT_ACTIONS, or a newer one. */
  action: string;
  target: { kind: string; id: string | null; name: string } | null;
  outcome: "success" | "failure";
  details: Record<string, string | number | string[]>;
}

export interface AuditPage {
  items: AuditEntry[];
  /** The `before` of the next page; null on the last one. */
  next: number | null;
}

/** Empty: all of them. */
export interface AuditQuery {
  action: string;
  actor: string;
}

export interface WorkspaceDraft {
  name: string;
  description: string;
  image_ref?: string;
  standby_ttl_seconds: number | null;
  archive_ttl_seconds: number | null;
  desired_state: Wish;
}

export type WorkspacePatch = Partial<
  Pick<DetailedWorkspace, "name" | "description" | "memo" | "standby_ttl_seconds" | "archive_ttl_seconds">
> & { desired_state?: Wish };

export type RecoverSource =
  | { from: "archive"; archive_op_id: string }
  | { from: "empty" }
  | Record<string, never>;
