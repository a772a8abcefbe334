/** Search on the server, which finds memos. Lists do not contain them. */
import { api } from "../api";
import { wordsOf } from "../workspace";
import { type Loaded, useLoader } from "./loader";

const PAGE_SIZE = 200;
const TYPING_PAUSE_MILLISECONDS = 250;

export interface Found {
  query: string;
  ids: ReadonlySet<string>;
}

/** Returns the ids of all workspaces that the server finds. */
export async function findIds(query: string, signal?: AbortSignal): Promise<ReadonlySet<string>> {
  const ids = new Set<string>();
  for (let offset = 0; ; offset += PAGE_SIZE) {
    const { items, total } = await api.workspaces({ q: query, limit: PAGE_SIZE, offset }, signal);
    for (const item of items) ids.add(item.id);
    if (items.length === 0 || offset + items.length >= total) return ids;
  }
}

/** Searches once typing has paused. `data` may still belong to an earlier query. */
export function useSearch(query: string): Loaded<Found> {
  return useLoader(query, async (signal) => {
    if (wordsOf(query).length === 0) return { query, ids: new Set<string>() };
    await new Promise((resolve) => setTimeout(resolve, TYPING_PAUSE_MILLISECONDS));
    return { query, ids: signal.aborted ? new Set<string>() : await findIds(query, signal) };
  });
}
