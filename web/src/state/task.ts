import { useState } from "preact/hooks";

import { ApiError } from "../api";

export interface Task {
  busy: boolean;
  error: ApiError | null;
  /** Runs the work unless it already runs; true when it succeeded. */
  run(work: () => Promise<unknown>): Promise<boolean>;
  clear(): void;
}

/** One request at a time with its outcome, for showing an error beside what caused it. */
export function useTask(): Task {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  return {
    busy,
    error,
    clear: () => setError(null),
    run: async (work) => {
      if (busy) return false;
      setBusy(true);
      setError(null);
      try {
        await work();
        return true;
      } catch (problem) {
        if (!(problem instanceof ApiError)) throw problem;
        setError(problem);
        return false;
      } finally {
        setBusy(false);
      }
    },
  };
}
