import type { ApiError } from "../api";
import { messages } from "../i18n";
import { Icon } from "./Icon";

interface Props {
  error: ApiError | null;
  onDismiss?: () => void;
}

/** What the API refused and why, to be placed beside what caused it. */
export function ErrorNote({ error, onDismiss }: Props) {
  if (!error) return null;
  const text = messages.value.errors;
  const titles: Record<string, string> = text.titles;
  const title = error.code === "NETWORK" ? text.network : titles[error.code];
  return (
    <div class="note note-error" role="alert">
      <Icon name="alert" />
      <p>
        {title && <strong>{title}</strong>} {error.message}
      </p>
      {onDismiss && (
        <button type="button" class="icon-button" aria-label={text.dismiss} onClick={onDismiss}>
          <Icon name="close" />
        </button>
      )}
    </div>
  );
}
