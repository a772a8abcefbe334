import { useState } from "preact/hooks";

import { api } from "../api";
import { AdminTabs } from "../components/AdminTabs";
import { ErrorNote } from "../components/ErrorNote";
import { PhaseFilter, SearchField } from "../components/ListTools";
import { Pager } from "../components/Pager";
import { PageTitle } from "../components/PageTitle";
import { WorkspaceCard } from "../components/WorkspaceCard";
import { messages } from "../i18n";
import { useLoader } from "../state/loader";
import type { Phase } from "../types";
import { PHASES } from "../workspace";

const PAGE_SIZE = 30;
const POLL_MILLISECONDS = 4_000;

interface Query {
  q: string;
  phase: Phase | "";
  trash: boolean;
  offset: number;
}

export function AdminWorkspacesPage() {
  const text = messages.value.admin;
  const [query, setQuery] = useState<Query>({ q: "", phase: "", trash: false, offset: 0 });
  const narrow = (change: Partial<Query>) => setQuery({ ...query, offset: 0, ...change });
  const found = useLoader(
    JSON.stringify(query),
    (signal) => api.adminWorkspaces({ ...query, limit: PAGE_SIZE }, signal),
    POLL_MILLISECONDS,
  );
  const items = found.data?.items ?? [];
  return (
    <>
      <PageTitle title={text.workspaces} />
      <AdminTabs />
      <search class="tools">
        <SearchField value={query.q} onChange={(q) => narrow({ q })} />
        <PhaseFilter phases={PHASES} value={query.phase} onChange={(phase) => narrow({ phase })} />
        <label class="check">
          <input
            type="checkbox"
            data-testid="admin-trash"
            checked={query.trash}
            onChange={(event) => narrow({ trash: event.currentTarget.checked })}
          />
          {text.deleted}
        </label>
      </search>
      <ErrorNote error={found.error} />
      {found.data && items.length === 0 && (
        <div class="empty">
          <p>{text.none}</p>
        </div>
      )}
      <ul class="cards">
        {items.map((workspace) => (
          <WorkspaceCard key={workspace.id} workspace={workspace} viewer="admin" onDone={found.reload} />
        ))}
      </ul>
      <Pager
        offset={query.offset}
        pageSize={PAGE_SIZE}
        total={found.data?.total ?? 0}
        onMove={(offset) => setQuery({ ...query, offset })}
      />
    </>
  );
}
