import { api } from "../api";
import { messages } from "../i18n";
import { useLoader } from "../state/loader";
import { useReloadOnEvent } from "../state/reload_on_event";
import { ErrorNote } from "./ErrorNote";
import { Time } from "./Time";

const POLL_MILLISECONDS = 30_000;

export function Timeline({ id }: { id: string }) {
  const text = messages.value.detail;
  const timeline = useLoader(id, (signal) => api.timeline(id, signal), POLL_MILLISECONDS);
  useReloadOnEvent(id, timeline.reload);
  const items = timeline.data?.items ?? [];
  return (
    <>
      <ErrorNote error={timeline.error} />
      {timeline.data && items.length === 0 && <p class="muted">{text.timelineEmpty}</p>}
      <ol class="timeline" data-testid="timeline">
        {items.map((entry, index) => (
          <li key={`${entry.at} ${items.length - index}`}>
            <p>{entry.message || entry.event}</p>
            <p class="hint">
              <Time at={entry.at} as="exact" />
              {` · ${entry.actor} · ${entry.event}`}
            </p>
          </li>
        ))}
      </ol>
    </>
  );
}
