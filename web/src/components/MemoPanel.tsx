import { useId } from "preact/hooks";

import { messages } from "../i18n";
import { useDetail } from "../state/detail";
import { draftField } from "../state/drafts";
import { saveMemo } from "../state/memo";
import { useTask } from "../state/task";
import type { DetailedWorkspace, Workspace } from "../types";
import { DraftButtons } from "./DraftButtons";
import { ErrorNote } from "./ErrorNote";

/**
 * The memo. Its editor appears once it is loaded, so that a draft cannot overwrite an unread memo.
 */
export function MemoPanel({ workspace }: { workspace: Workspace }) {
  const { detail, error } = useDetail(workspace.id, workspace.version);
  if (detail) return <MemoEditor shown={detail} />;
  return (
    <section class="panel">
      <h2>{messages.value.detail.memo}</h2>
      {error ? <ErrorNote error={error} /> : <p class="muted">{messages.value.list.loading}</p>}
    </section>
  );
}

function MemoEditor({ shown }: { shown: DetailedWorkspace }) {
  const text = messages.value.detail;
  const task = useTask();
  const id = useId();
  const draft = draftField(`${shown.id}/memo`, shown.memo);

  const save = async (event: Event) => {
    event.preventDefault();
    if (!draft.dirty) return;
    const memo = draft.value;
    await task.run(async () => {
      if (await saveMemo(shown, memo)) draft.saved(memo);
    });
  };
  return (
    <form class="panel" onSubmit={save}>
      <h2>
        <label for={id}>{text.memo}</label>
      </h2>
      <textarea
        id={id}
        rows={6}
        maxLength={20_000}
        data-testid="memo"
        aria-describedby={`${id}-hint`}
        value={draft.value}
        onInput={(event) => draft.set(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void save(event);
        }}
      />
      <p class="hint" id={`${id}-hint`}>
        {text.memoHint}
      </p>
      <ErrorNote error={task.error} />
      <DraftButtons
        dirty={draft.dirty}
        conflict={draft.conflict}
        busy={task.busy}
        testId="memo-save"
        onDiscard={draft.discard}
      />
    </form>
  );
}
