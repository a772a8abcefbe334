import { useEffect, useState } from "preact/hooks";

import { ApiError, api } from "../api";
import { harmless, newest } from "../log_text";

const LINES = 1_000;
const RETRY_MILLISECONDS = 3_000;

export interface Logs {
  text: string;
  error: ApiError | null;
  /** Whether all output has been read. If new output is followed, the workspace does not run. */
  ended: boolean;
}

const NOTHING: Logs = { text: "", error: null, ended: false };

/** Reads the output of a workspace, again when `key` changes. A stream that breaks is read again. */
export function useLogs(id: string, follow: boolean, key: string): Logs {
  const [logs, setLogs] = useState<Logs>(NOTHING);
  useEffect(() => {
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      const decoder = new TextDecoder();
      let text = "";
      let held = "";
      const take = (piece: string) => {
        // The two characters of a line's end may come in two pieces.
        const whole = held + piece;
        held = whole.endsWith("\r") ? "\r" : "";
        text = newest(text + harmless(whole.slice(0, whole.length - held.length)));
        setLogs({ text, error: null, ended: false });
      };
      try {
        await api.logs(
          id,
          { lines: LINES, follow },
          (piece) => take(decoder.decode(piece, { stream: true })),
          controller.signal,
        );
        setLogs({ text: newest(text + harmless(held + decoder.decode())), error: null, ended: true });
      } catch (problem) {
        if (controller.signal.aborted) return;
        if (!(problem instanceof ApiError)) throw problem;
        setLogs((before) => ({ ...before, error: problem }));
        timer = setTimeout(read, RETRY_MILLISECONDS);
      }
    };
    setLogs(NOTHING);
    void read();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [id, follow, key]);
  return logs;
}
