import { effect, signal } from "@preact/signals";

import { ErrorNote } from "../components/ErrorNote";
import { Icon } from "../components/Icon";
import { ListTools } from "../components/ListTools";
import { PageTitle } from "../components/PageTitle";
import { WorkspaceCard } from "../components/WorkspaceCard";
import { messages } from "../i18n";
import { showDialog } from "../state/dialogs";
import { loaded, runningCount, workspaces } from "../state/live";
import { useSearch } from "../state/search";
import { session } from "../state/session";
import { type Selection, select } from "../workspace";

const EVERYTHING: Selection = { query: "", phase: "", sort: "activity" };

const NOTHING_FOUND: ReadonlySet<string> = new Set();

const KEPT_AS = "codehub.list";

/** Outlives the page and a reload, so that the list is as the user left it. */
const selection = signal<Selection>(readSelection());

effect(() => sessionStorage.setItem(KEPT_AS, JSON.stringify(selection.value)));

function readSelection(): Selection {
  try {
    return { ...EVERYTHING, ...JSON.parse(sessionStorage.getItem(KEPT_AS) ?? "{}") };
  } catch {
    return EVERYTHING;
  }
}

export function WorkspacesPage() {
  const text = messages.value.list;
  const all = [...workspaces.value.values()];
  const search = useSearch(selection.value.query);
  const isCurrent = search.data?.query === selection.value.query;
  const shown = select(all, selection.value, isCurrent ? search.data!.ids : NOTHING_FOUND);
  return (
    <>
      <PageTitle title={text.title}>
        <RunningCount />
        <button
          type="button"
          class="button button-primary"
          data-testid="new-workspace"
          onClick={() => showDialog({ kind: "create" })}
        >
          <Icon name="plus" />
          {text.create}
        </button>
      </PageTitle>
      {all.length > 0 && (
        <ListTools selection={selection.value} onChange={(next) => (selection.value = next)}>
          <p class="muted" role="status">
            {text.shown(shown.length, all.length)}
          </p>
        </ListTools>
      )}
      <ErrorNote error={search.error} />
      {!loaded.value && all.length === 0 && <p class="muted">{text.loading}</p>}
      {loaded.value && all.length === 0 && <Empty />}
      {all.length > 0 && shown.length === 0 && isCurrent && <NoMatch />}
      <ul class="cards">
        {shown.map((workspace) => (
          <WorkspaceCard key={workspace.id} workspace={workspace} viewer="owner" />
        ))}
      </ul>
    </>
  );
}

function RunningCount() {
  const limits = session.value?.limits;
  if (!limits || !loaded.value) return null;
  return <p class="muted">{messages.value.list.running(runningCount.value, limits.max_running_per_user)}</p>;
}

function Empty() {
  const text = messages.value.list;
  return (
    <div class="empty">
      <h2>{text.emptyTitle}</h2>
      <p>{text.emptyText}</p>
    </div>
  );
}

function NoMatch() {
  const text = messages.value.list;
  return (
    <div class="empty">
      <p>{text.noMatch}</p>
      <button
        type="button"
        class="button"
        onClick={() => (selection.value = { ...EVERYTHING, sort: selection.value.sort })}
      >
        {text.clear}
      </button>
    </div>
  );
}
