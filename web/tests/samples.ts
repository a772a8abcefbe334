import type { DetailedWorkspace, Workspace } from "../src/types";

export function workspace(changes: Partial<Workspace> = {}): Workspace {
  return {
    id: "01j00000000000000000000001",
    name: "api-server",
    description: "",
    image_ref: "code-server",
    owner: { id: "01j0000000000000000000000a", username: "mina" },
    phase: "RUNNING",
    operation: "NONE",
    desired_state: "RUNNING",
    conditions: {},
    error_reason: null,
    error_count: 0,
    error_message: null,
    ways_out: [],
    version: 1,
    progress: null,
    home: null,
    has_archive: false,
    archive_to_restore: null,
    url: "http://localhost:8080/w/01j00000000000000000000001/",
    created_at: "2026-01-01T00:00:00Z",
    updated_at: "2026-01-01T00:00:00Z",
    last_access_at: "2026-01-01T00:00:00Z",
    phase_changed_at: "2026-01-01T00:00:00Z",
    standby_at: null,
    standby: null,
    archive_at: null,
    keep_until: null,
    standby_ttl_seconds: null,
    archive_ttl_seconds: null,
    awake_cpu_percent: null,
    deleted_at: null,
    purge_at: null,
    op_started_at: null,
    ...changes,
  };
}

export const detailed = (changes: Partial<DetailedWorkspace> = {}): DetailedWorkspace => ({
  ...workspace(),
  memo: "",
  home: null,
  archive: null,
  ...changes,
});

export const session = {
  user: { id: "01j0000000000000000000000a", username: "mina", role: "user" as const },
  token: null,
  limits: { max_running_per_user: 2, running: 0 },
  archives: { bytes: 0, max_bytes: null },
  ttl: { standby_seconds: 600, archive_seconds: 1800, awake_cpu_percent: 0 },
  apps_mode: "origin" as const,
  trash_retention_seconds: 604_800,
};
