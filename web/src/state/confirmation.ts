import { useState } from "preact/hooks";

import { ApiError, api } from "../api";

export interface Confirmation {
  isNeeded: boolean;
  password: string;
  setPassword: (password: string) => void;
  /** Does the work, after entering the password again if the API needs that. */
  run<T>(work: () => Promise<T>): Promise<T>;
  clear(): void;
}

/** The user's own password, for calls that may answer with PASSWORD_REQUIRED. */
export function useConfirmation(): Confirmation {
  const [password, setPassword] = useState("");
  const [isNeeded, setIsNeeded] = useState(false);
  const clear = () => {
    setPassword("");
    setIsNeeded(false);
  };
  return {
    isNeeded,
    password,
    setPassword,
    clear,
    run: async (work) => {
      setPassword("");
      if (isNeeded) await api.confirmPassword(password);
      try {
        const result = await work();
        setIsNeeded(false);
        return result;
      } catch (problem) {
        if (problem instanceof ApiError && problem.code === "PASSWORD_REQUIRED") setIsNeeded(true);
        throw problem;
      }
    },
  };
}
