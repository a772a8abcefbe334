import { signal } from "@preact/signals";

let offsetMilliseconds = 0;

/** Measures how far the local clock is off: deadlines are in the server's time. */
export function noteServerTime(dateHeader: string | null, localNow = Date.now()): void {
  const server = dateHeader ? Date.parse(dateHeader) : NaN;
  if (Number.isNaN(server)) return;
  const difference = server - localNow;
  // The header has whole seconds and takes a while to arrive, so differences below two seconds are
  // ignored.
  offsetMilliseconds = Math.abs(difference) < 2000 ? 0 : difference;
}

export const serverNow = (): number => Date.now() + offsetMilliseconds;

/** The server's time in milliseconds, updated once a second while the page is visible. */
export const now = signal(serverNow());

setInterval(() => {
  if (document.visibilityState === "visible") now.value = serverNow();
}, 1000);
