import { type ApiError, api } from "../api";
import type { Workspace } from "../types";
import type { Viewer } from "../workspace";
import { cacheDetail } from "./detail";
import { loaded, workspaces } from "./live";
import { useLoader } from "./loader";

const POLL_MILLISECONDS = 4_000;

export interface WatchedWorkspace {
  workspace: Workspace | null;
  viewer: Viewer;
  error: ApiError | null;
  reload(): void;
}

/**
 * Returns one's own workspace from the live list. Another user's, which admins may view, is polled.
 */
export function useWorkspace(id: string): WatchedWorkspace {
  const own = workspaces.value.get(id) ?? null;
  const ofOtherUser = loaded.value && !own;
  const fetched = useLoader<Workspace | null>(
    `${id} ${ofOtherUser}`,
    (signal) => (ofOtherUser ? loadOfOtherUser(id, signal) : Promise.resolve(null)),
    ofOtherUser ? POLL_MILLISECONDS : null,
  );
  if (own) return { workspace: own, viewer: "owner", error: null, reload: fetched.reload };
  const gone = fetched.error !== null && fetched.error.status >= 400;
  return {
    workspace: gone ? null : fetched.data,
    viewer: "admin",
    error: fetched.error,
    reload: fetched.reload,
  };
}

async function loadOfOtherUser(id: string, signal: AbortSignal): Promise<Workspace> {
  const detail = await api.workspace(id, signal);
  cacheDetail(detail);
  return detail;
}
