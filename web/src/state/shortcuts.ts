import { signal } from "@preact/signals";

import { dialog, showDialog } from "./dialogs";
import { navigate, route } from "./router";
import { session } from "./session";

const STORAGE_KEY = "shortcuts";

/** Single-key shortcuts interfere with speech input, so they can be turned off (WCAG 2.1.4). */
export const shortcutsEnabled = signal(localStorage.getItem(STORAGE_KEY) !== "off");

export function setShortcutsEnabled(enabled: boolean): void {
  shortcutsEnabled.value = enabled;
  localStorage.setItem(STORAGE_KEY, enabled ? "on" : "off");
}

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

function focusSearch(): void {
  if (!document.querySelector("[data-search]")) navigate("/");
  requestAnimationFrame(() => document.querySelector<HTMLInputElement>("[data-search]")?.focus());
}

/** Returns the command of a key. A Korean keyboard in Hangul mode sends ㅜ for n. */
function commandFor(key: string): (() => void) | null {
  switch (key) {
    case "n":
    case "ㅜ":
      return () => showDialog({ kind: "create" });
    case "/":
      return focusSearch;
    case "?":
      return () => showDialog({ kind: "help" });
    default:
      return null;
  }
}

function onKey(event: KeyboardEvent): void {
  if (!shortcutsEnabled.peek() || !session.peek() || dialog.peek() || route.peek().page === "login") return;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isTyping(event.target)) return;
  const command = commandFor(event.key);
  if (!command) return;
  event.preventDefault();
  command();
}

export function startShortcuts(): void {
  document.addEventListener("keydown", onKey);
}
