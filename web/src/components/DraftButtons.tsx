import { messages } from "../i18n";

interface Props {
  dirty: boolean;
  conflict: boolean;
  busy: boolean;
  testId: string;
  onDiscard: () => void;
}

/** The state of a draft, with buttons to save or discard it. */
export function DraftButtons({ dirty, conflict, busy, testId, onDiscard }: Props) {
  const text = messages.value;
  return (
    <div class="draft">
      <p role="status" class={conflict ? "draft-conflict" : "muted"}>
        {conflict ? text.detail.changedElsewhere : dirty ? text.detail.unsaved : ""}
      </p>
      {dirty && (
        <button type="button" class="button" onClick={onDiscard}>
          {conflict ? text.detail.useTheirs : text.detail.discard}
        </button>
      )}
      <button type="submit" class="button" aria-disabled={!dirty || busy} data-testid={testId}>
        {busy ? text.dialog.saving : text.dialog.save}
      </button>
    </div>
  );
}
