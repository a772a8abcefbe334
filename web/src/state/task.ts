import { useEffect, useState } from "preact/hooks";

import { ApiError } from "../api";
import type { Workspace } from "../types";
import { connection, runningCount } from "./live";
import { session } from "./session";

export interface Task {
  busy: boolean;
  error: ApiError | null;
  /** Runs the work, unless it is already running. Returns whether it succeeded. */
  run(work: () => Promise<unknown>): Promise<boolean>;
  clear(): void;
}

/** Runs one request at a time and keeps its error, to show it beside what caused it. */
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

/** A task of one workspace. Its error is cleared when the cause is gone. */
export function useWorkspaceTask(workspace: Workspace): Task {
  const task = useTask();
  const code = task.error?.code;
  const isLive = connection.value === "live";
  const running = runningCount.value;
  useEffect(() => task.clear(), [workspace.phase, workspace.operation, workspace.desired_state]);
  useEffect(() => {
    if (code === "NETWORK" && isLive) task.clear();
  }, [isLive]);
  useEffect(() => {
    const limit = session.peek()?.limits.max_running_per_user ?? 0;
    if (code === "RUNNING_LIMIT_EXCEEDED" && running < limit) task.clear();
  }, [running]);
  return task;
}
