import { bytes } from "../format";
import { messages } from "../i18n";
import type { DetailedHome, Home } from "../types";
import { Icon } from "./Icon";

/** Returns "1.2 GB of 10.0 GB", or only the size if there is no quota. */
export function homeSize(home: Home): string {
  const text = messages.value.detail;
  const used = home.complete ? bytes(home.bytes) : text.atLeast(bytes(home.bytes));
  return home.quota_bytes === null ? used : text.homeOf(used, bytes(home.quota_bytes));
}

/** The notice of the disk watchdog, or a warning that the home is full. */
export function HomeNotice({ home }: { home: Home | null }) {
  const message = home?.notice ?? (home?.is_full ? messages.value.detail.homeFull : null);
  if (!message) return null;
  return (
    <div class="note note-error" data-testid="home-notice">
      <Icon name="alert" />
      <p>{message}</p>
    </div>
  );
}

export function LargestEntries({ entries }: { entries: DetailedHome["largest"] }) {
  return (
    <ul class="largest">
      {entries.map((entry) => (
        <li key={entry.name}>
          <code>{entry.name}</code> <span class="muted">{bytes(entry.bytes)}</span>
        </li>
      ))}
    </ul>
  );
}
