import { bytes, count } from "../format";
import { messages } from "../i18n";
import type { Progress } from "../types";

/** Progress bar, indeterminate while the total is unknown. */
export function ProgressBar({ progress }: { progress: Progress | null }) {
  const text = messages.value.card;
  const total = progress?.total ?? 0;
  const done = progress?.bytes ?? 0;
  const known = total > 0;
  return (
    <div class="progress">
      <progress aria-label={text.progress} {...(known ? { max: total, value: Math.min(done, total) } : {})} />
      {progress && (
        <span class="progress-text">
          {known ? text.bytesOf(bytes(done), bytes(total)) : bytes(done)}
          {progress.files !== null && ` · ${text.files(count(progress.files))}`}
        </span>
      )}
    </div>
  );
}
