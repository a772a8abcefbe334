/** The workspace on the page with the fields that lists and events leave out. */

import { signal } from "@preact/signals";

import { type ApiError, api } from "../api";
import type { DetailedWorkspace } from "../types";
import { useLoader } from "./loader";

const latest = signal<DetailedWorkspace | null>(null);

/** Caches a response, unless a newer one is cached. */
export function cacheDetail(detail: DetailedWorkspace): void {
  const known = latest.peek();
  if (known?.id === detail.id && detail.version < known.version) return;
  latest.value = detail;
}

export const cachedDetail = (id: string): DetailedWorkspace | null =>
  latest.value?.id === id ? latest.value : null;

export function forgetDetail(): void {
  latest.value = null;
}

export interface Detail {
  /** null until it is loaded. */
  detail: DetailedWorkspace | null;
  error: ApiError | null;
}

/** Loads the workspace, and reloads it for every version that an event reports. */
export function useDetail(id: string, version: number): Detail {
  const loaded = useLoader(`${id} ${version}`, async (signal) =>
    cacheDetail(await api.workspace(id, signal)),
  );
  return { detail: cachedDetail(id), error: loaded.error };
}
