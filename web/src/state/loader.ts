import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError } from "../api";

export interface Loaded<T> {
  data: T | null;
  error: ApiError | null;
  reload(): void;
}

/**
 * Fetches again when `key` changes, on reload(), and every `everyMilliseconds` while the page is visible. The
 * previous data stays until the next response. A late response to an earlier request is dropped.
 */
export function useLoader<T>(
  key: string,
  fetcher: (signal: AbortSignal) => Promise<T>,
  everyMilliseconds: number | null = null,
): Loaded<T> {
  const [data, setData] = useState<T | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const latest = useRef(fetcher);
  latest.current = fetcher;
  const running = useRef<AbortController | null>(null);

  const load = useRef(async () => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    try {
      const answer = await latest.current(controller.signal);
      if (controller.signal.aborted) return;
      setData(() => answer);
      setError(null);
    } catch (problem) {
      if (controller.signal.aborted) return;
      if (!(problem instanceof ApiError)) throw problem;
      setError(problem);
    }
  });

  useEffect(() => {
    void load.current();
    return () => running.current?.abort();
  }, [key]);

  useEffect(() => {
    if (everyMilliseconds === null) return;
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") void load.current();
    }, everyMilliseconds);
    return () => clearInterval(timer);
  }, [everyMilliseconds]);

  return { data, error, reload: () => void load.current() };
}
