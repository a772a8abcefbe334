import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { messages } from "../i18n";
import { useLogs } from "../state/logs";
import type { Workspace } from "../types";
import { ErrorNote } from "./ErrorNote";

/** The output of the workspace's IDE, once it is asked for. */
export function LogsPanel({ workspace }: { workspace: Workspace }) {
  const text = messages.value.logs;
  const [shown, setShown] = useState(false);
  return (
    <section class="panel" data-testid="logs-panel">
      <h2>{text.title}</h2>
      <div class="row-actions">
        <button
          type="button"
          class="button"
          aria-expanded={shown}
          data-testid="show-logs"
          onClick={() => setShown(!shown)}
        >
          {shown ? text.hide : text.show}
        </button>
      </div>
      {shown && <Output workspace={workspace} />}
    </section>
  );
}

function Output({ workspace }: { workspace: Workspace }) {
  const text = messages.value.logs;
  const [follow, setFollow] = useState(true);
  const mayRun = workspace.phase === "RUNNING" || workspace.operation !== "NONE";
  const logs = useLogs(workspace.id, follow, String(mayRun));
  const box = useRef<HTMLElement>(null);
  const atEnd = useRef(true);

  useLayoutEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const noteScroll = (event: Event) => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget as HTMLElement;
    atEnd.current = scrollHeight - scrollTop - clientHeight < 24;
  };
  return (
    <>
      <p class="hint">{text.text}</p>
      <label class="check">
        <input
          type="checkbox"
          checked={follow}
          data-testid="follow-logs"
          onChange={(event) => setFollow(event.currentTarget.checked)}
        />
        {text.follow}
      </label>
      {logs.error?.code === "NETWORK" ? (
        <p class="muted" role="status">
          {text.reconnecting}
        </p>
      ) : (
        <ErrorNote error={logs.error} />
      )}
      {logs.text && (
        <section
          class="logs"
          ref={box}
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard.
          tabIndex={0}
          aria-label={text.title}
          onScroll={noteScroll}
        >
          <pre data-testid="logs">{logs.text}</pre>
        </section>
      )}
      {logs.ended && !logs.text && <p class="muted">{text.empty}</p>}
      {logs.ended && follow && <p class="muted">{text.ended}</p>}
    </>
  );
}
