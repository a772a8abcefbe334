/** What lists and events leave out of a workspace, loaded for the page that shows it. */
import { signal } from "@preact/signals";

import { type ApiError, api } from "../api";
import type { DetailedWorkspace } from "../types";
import { useLoader } from "./loader";

const latest = signal<DetailedWorkspace | null>(null);

/** Keeps an answer of the API, unless a newer one is already shown. */
export function keepDetail(detail: DetailedWorkspace): void {
  const known = latest.peek();
  if (known?.id === detail.id && detail.version < known.version) return;
  latest.value = detail;
}

export const knownDetail = (id: string): DetailedWorkspace | null =>
  latest.value?.id === id ? latest.value : null;

export function forgetDetail(): void {
  latest.value = null;
}

export interface Detail {
  /** null while nothing is loaded. */
  detail: DetailedWorkspace | null;
  error: ApiError | null;
}

/** Loads again with every version that an event reports. */
export function useDetail(id: string, version: number): Detail {
  const loaded = useLoader(`${id} ${version}`, async (signal) => keepDetail(await api.workspace(id, signal)));
  return { detail: knownDetail(id), error: loaded.error };
}
