import { useEffect } from "preact/hooks";

import { api } from "../api";
import { messages } from "../i18n";
import { lastEvent } from "../state/live";
import { useLoader } from "../state/loader";
import { ErrorNote } from "./ErrorNote";
import { Time } from "./Time";

/** Progress sends several events a second. The timeline is fetched less often. */
const THROTTLE_MILLISECONDS = 800;
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

function useReloadOnEvent(id: string, reload: () => void): void {
  useEffect(() => {
    let timer: number | undefined;
    let first = true;
    const unsubscribe = lastEvent.subscribe((event) => {
      const concerns = !first && (event?.id === id || event?.id === "*");
      first = false;
      if (!concerns || timer !== undefined) return;
      timer = window.setTimeout(() => {
        timer = undefined;
        reload();
      }, THROTTLE_MILLISECONDS);
    });
    return () => {
      unsubscribe();
      clearTimeout(timer);
    };
  }, [id]);
}
