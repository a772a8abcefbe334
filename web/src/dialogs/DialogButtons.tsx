import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";

interface Props {
  submit: string;
  busy: boolean;
  busyText?: string;
  danger?: boolean;
  testId?: string;
}

export function DialogButtons({ submit, busy, busyText, danger = false, testId }: Props) {
  return (
    <div class="dialog-buttons">
      <button type="button" class="button" onClick={closeDialog}>
        {messages.value.dialog.cancel}
      </button>
      <button
        type="submit"
        class={danger ? "button button-primary button-destroy" : "button button-primary"}
        aria-disabled={busy}
        data-testid={testId}
      >
        {busy ? (busyText ?? submit) : submit}
      </button>
    </div>
  );
}
