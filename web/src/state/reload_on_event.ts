import { useEffect } from "preact/hooks";

import { lastEvent } from "./live";

/** Progress sends several events a second. What a page shows of it is fetched less often. */
const THROTTLE_MILLISECONDS = 800;

/** Calls `reload` after events about a workspace. */
export function useReloadOnEvent(id: string, reload: () => void): void {
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
