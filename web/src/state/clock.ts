import { signal } from "@preact/signals";

let offsetMilliseconds = 0;

/** Deadlines are the server's: a wrong clock on this side must not make them lie. */
export function noteServerTime(dateHeader: string | null, localNow = Date.now()): void {
  const server = dateHeader ? Date.parse(dateHeader) : NaN;
  if (Number.isNaN(server)) return;
  const difference = server - localNow;
  // The header counts whole seconds and travels a while; less than two is not a wrong clock.
  offsetMilliseconds = Math.abs(difference) < 2000 ? 0 : difference;
}

export const serverNow = (): number => Date.now() + offsetMilliseconds;

/** The server's time in milliseconds, moving once a second while someone looks. */
export const now = signal(serverNow());

setInterval(() => {
  if (document.visibilityState === "visible") now.value = serverNow();
}, 1000);
