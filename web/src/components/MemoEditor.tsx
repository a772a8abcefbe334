import { useId } from "preact/hooks";

import { api } from "../api";
import { messages } from "../i18n";
import { draftField } from "../state/drafts";
import { applyWorkspace } from "../state/live";
import { useTask } from "../state/task";
import type { Workspace } from "../types";
import { DraftButtons } from "./DraftButtons";
import { ErrorNote } from "./ErrorNote";

export function MemoEditor({ workspace }: { workspace: Workspace }) {
  const text = messages.value.detail;
  const task = useTask();
  const id = useId();
  const draft = draftField(`${workspace.id}/memo`, workspace.memo);

  const save = async (event: Event) => {
    event.preventDefault();
    if (!draft.dirty) return;
    const memo = draft.value;
    await task.run(async () => {
      applyWorkspace(await api.patchWorkspace(workspace.id, { memo }));
      draft.saved(memo);
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
