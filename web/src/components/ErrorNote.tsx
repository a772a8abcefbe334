import type { ApiError } from "../api";
import { language, messages } from "../i18n";
import { Icon } from "./Icon";

interface Props {
  error: ApiError | null;
  onDismiss?: () => void;
}

/**
 * An error of the API, to be placed beside what caused it.
 *
 * The API's messages are in English. In another language, the message is a detail under a translated title.
 */
export function ErrorNote({ error, onDismiss }: Props) {
  if (!error) return null;
  const { errors: text, failures } = messages.value;
  const titles: Record<string, string> = text.titles;
  const title = error.code === "NETWORK" ? text.network : titles[error.code];
  const isEnglish = language.value === "en";
  return (
    <div class="note note-error" role="alert">
      <Icon name="alert" />
      {isEnglish ? (
        <p>
          {title && <strong>{title}</strong>} {error.message}
        </p>
      ) : (
        <div>
          <strong>{title ?? failures.unknown}</strong>
          {error.message && (
            <details>
              <summary>{failures.details}</summary>
              <span lang="en">{error.message}</span>
            </details>
          )}
        </div>
      )}
      {onDismiss && (
        <button type="button" class="icon-button" aria-label={text.dismiss} onClick={onDismiss}>
          <Icon name="close" />
        </button>
      )}
    </div>
  );
}
