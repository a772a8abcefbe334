import { useState } from "preact/hooks";

import { type ApiError, api } from "../api";
import type { AuditEntry, AuditPage, AuditQuery } from "../types";
import { useLoader } from "./loader";
import { useTask } from "./task";

export const AUDIT_PAGE_SIZE = 50;

interface OlderEntries {
  /** The first page that these entries follow. */
  first: AuditPage;
  items: AuditEntry[];
  next: number | null;
}

export interface AuditLog {
  /** null until the first response. */
  items: AuditEntry[] | null;
  error: ApiError | null;
  hasMore: boolean;
  loadingMore: boolean;
  loadMore(): void;
}

/** Loads the newest entries, and older ones on request. A new query starts at the newest again. */
export function useAuditLog(query: AuditQuery): AuditLog {
  const firstPage = { ...query, limit: AUDIT_PAGE_SIZE };
  const { data: first, error } = useLoader(JSON.stringify(query), (signal) => api.audit(firstPage, signal));
  const [kept, setKept] = useState<OlderEntries | null>(null);
  const task = useTask();
  // Entries of another query do not follow this page.
  const further = kept !== null && kept.first === first ? kept : null;
  const next = further ? further.next : (first?.next ?? null);
  return {
    items: first && [...first.items, ...(further?.items ?? [])],
    error: error ?? task.error,
    hasMore: next !== null,
    loadingMore: task.busy,
    loadMore: () =>
      void task.run(async () => {
        if (first === null || next === null) return;
        const page = await api.audit({ ...firstPage, before: next });
        setKept({ first, items: [...(further?.items ?? []), ...page.items], next: page.next });
      }),
  };
}
