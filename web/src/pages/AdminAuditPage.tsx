import { useState } from "preact/hooks";

import { AUDIT_ACTIONS, auditActor, auditSentence } from "../audit";
import { AdminTabs } from "../components/AdminTabs";
import { ErrorNote } from "../components/ErrorNote";
import { Field } from "../components/Field";
import { PageTitle } from "../components/PageTitle";
import { Time } from "../components/Time";
import { messages } from "../i18n";
import { useAuditLog } from "../state/audit";
import type { AuditEntry, AuditQuery } from "../types";

export function AdminAuditPage() {
  const text = messages.value.audit;
  const [query, setQuery] = useState<AuditQuery>({ action: "", actor: "" });
  const log = useAuditLog({ ...query, actor: query.actor.trim() });
  return (
    <>
      <PageTitle title={text.title} />
      <AdminTabs />
      <Filters query={query} onChange={setQuery} />
      <ErrorNote error={log.error} />
      {log.items && <Entries items={log.items} />}
      <div class="pager">
        <p class="muted" role="status">
          {log.items && log.items.length > 0 && text.shown(log.items.length)}
        </p>
        {log.hasMore && (
          <button
            type="button"
            class="button"
            aria-disabled={log.loadingMore}
            data-testid="audit-more"
            onClick={log.loadMore}
          >
            {log.loadingMore ? text.loading : text.more}
          </button>
        )}
      </div>
    </>
  );
}

interface FiltersProps {
  query: AuditQuery;
  onChange: (query: AuditQuery) => void;
}

function Filters({ query, onChange }: FiltersProps) {
  const text = messages.value.audit;
  return (
    <search class="tools audit-tools">
      <Field label={text.action}>
        {(ids) => (
          <select
            {...ids}
            value={query.action}
            data-testid="audit-action"
            onChange={(event) => onChange({ ...query, action: event.currentTarget.value })}
          >
            <option value="">{text.allActions}</option>
            {AUDIT_ACTIONS.map((action) => (
              <option key={action} value={action}>
                {text.labels[action]}
              </option>
            ))}
          </select>
        )}
      </Field>
      <Field label={text.actor}>
        {(ids) => (
          <input
            {...ids}
            type="search"
            data-search
            data-testid="audit-actor"
            maxLength={200}
            autoCapitalize="none"
            spellcheck={false}
            placeholder={text.actorPlaceholder}
            value={query.actor}
            onInput={(event) => onChange({ ...query, actor: event.currentTarget.value })}
          />
        )}
      </Field>
    </search>
  );
}

function Entries({ items }: { items: AuditEntry[] }) {
  const text = messages.value.audit;
  if (items.length === 0) {
    return (
      <div class="empty">
        <p>{text.none}</p>
      </div>
    );
  }
  return (
    <div class="panel">
      <table class="audit" data-testid="audit-log">
        <thead>
          <tr>
            <th scope="col">{text.time}</th>
            <th scope="col">{text.actor}</th>
            <th scope="col">{text.what}</th>
            <th scope="col">{text.address}</th>
          </tr>
        </thead>
        <tbody>
          {items.map((entry) => (
            <EntryRow key={entry.id} entry={entry} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function EntryRow({ entry }: { entry: AuditEntry }) {
  return (
    <tr data-testid="audit-row" data-action={entry.action}>
      <td class="audit-time">
        <Time at={entry.at} as="exact" />
      </td>
      <td class="audit-actor">{auditActor(entry)}</td>
      <td class={entry.outcome === "failure" ? "audit-failure" : undefined}>{auditSentence(entry)}</td>
      <td class="audit-address">{entry.address}</td>
    </tr>
  );
}
