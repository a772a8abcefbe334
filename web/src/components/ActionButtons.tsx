import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { messages } from "../i18n";
import { perform } from "../state/actions";
import type { Task } from "../state/task";
import type { Workspace } from "../types";
import { type Action, actionSlots, actionsFor, needsStartToOpen, type Viewer } from "../workspace";
import { Icon } from "./Icon";

interface Props {
  workspace: Workspace;
  viewer: Viewer;
  task: Task;
  onDone?: () => void;
}

const PRIMARY: ReadonlySet<Action> = new Set(["open", "recover", "undelete"]);

export function ActionButtons({ workspace, viewer, task, onDone = () => {} }: Props) {
  const group = useRef<HTMLDivElement>(null);
  const keepFocus = useFocusKeeper(group);
  const actions = actionsFor(workspace, viewer);
  const isSettled = useSettled(actions.join());
  const button = (action: Action) => {
    const primary = PRIMARY.has(action) || (action === "start" && !actions.includes("open"));
    const className = primary
      ? "button button-primary"
      : action === "delete"
        ? "button button-danger"
        : "button";
    if (action === "open" && !needsStartToOpen(workspace)) {
      return <OpenLink key={action} workspace={workspace} className={className} />;
    }
    return (
      <button
        key={action}
        type="button"
        class={className}
        data-testid={`action-${action}`}
        aria-label={messages.value.actions.on(messages.value.actions[action], workspace.name)}
        aria-disabled={task.busy || !isSettled}
        title={hintOf(action, workspace)}
        onClick={() => {
          if (isSettled) void task.run(() => perform(action, workspace, onDone));
        }}
      >
        <Icon name={action} />
        {messages.value.actions[action]}
      </button>
    );
  };
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for the fields of a form
    <div class="actions" ref={group} role="group" aria-label={workspace.name} tabIndex={-1} {...keepFocus}>
      {actionSlots(actions).map((action, slot) => (
        <div key={slot} class="action-slot">
          {action && button(action)}
        </div>
      ))}
    </div>
  );
}

function hintOf(action: Action, workspace: Workspace): string | undefined {
  const text = messages.value.actions;
  if (action === "start" && workspace.phase === "ARCHIVED") return text.restoreAndStart;
  return action === "extend" ? text.extendHint : undefined;
}

function OpenLink({ workspace, className }: { workspace: Workspace; className: string }) {
  const text = messages.value.actions;
  return (
    <a
      class={className}
      href={workspace.url}
      target="_blank"
      rel="noopener"
      data-testid="action-open"
      aria-label={`${text.on(text.open, workspace.name)} (${text.opensInNewTab})`}
    >
      <Icon name="open" />
      {text.open}
    </a>
  );
}

const SETTLED_MILLISECONDS = 500;

/**
 * Returns whether the buttons have not changed for a moment, so that a double click cannot press a
 * new one.
 */
function useSettled(actions: string): boolean {
  const [settled, setSettled] = useState(actions);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(actions), SETTLED_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [actions]);
  return settled === actions;
}

/**
 * Keeps the keyboard focus in the group when the pressed button disappears with the state it
 * belonged to.
 */
function useFocusKeeper(group: { current: HTMLDivElement | null }) {
  const inside = useRef(false);
  useLayoutEffect(() => {
    if (inside.current && document.activeElement === document.body) group.current?.focus();
  });
  return {
    onFocusIn: () => {
      inside.current = true;
    },
    onFocusOut: ({ target, relatedTarget }: FocusEvent) => {
      if (group.current?.contains(relatedTarget as Node | null)) return;
      // A browser may report the blur just before it removes the button, so check later whether it
      // did.
      queueMicrotask(() => {
        if ((target as Element).isConnected) inside.current = false;
      });
    },
  };
}
