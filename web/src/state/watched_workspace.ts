import { type ApiError, api } from "../api";
import type { Workspace } from "../types";
import type { Viewer } from "../workspace";
import { keepDetail } from "./detail";
import { loaded, workspaces } from "./live";
import { useLoader } from "./loader";

const POLL_MILLISECONDS = 4_000;

export interface One {
  workspace: Workspace | null;
  viewer: Viewer;
  error: ApiError | null;
  reload(): void;
}

/** One's own workspace is live; somebody else's, which an admin may look at, is asked for again and again. */
export function useWorkspace(id: string): One {
  const own = workspaces.value.get(id) ?? null;
  const foreign = loaded.value && !own;
  const fetched = useLoader<Workspace | null>(
    `${id} ${foreign}`,
    (signal) => (foreign ? loadForeign(id, signal) : Promise.resolve(null)),
    foreign ? POLL_MILLISECONDS : null,
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

async function loadForeign(id: string, signal: AbortSignal): Promise<Workspace> {
  const detail = await api.workspace(id, signal);
  keepDetail(detail);
  return detail;
}
