import type { ApiDocument } from "./openapi";
import { noteServerTime } from "./state/clock";
import type {
  Account,
  ArchiveList,
  AuditPage,
  AuditQuery,
  DetailedWorkspace,
  Images,
  LeaseList,
  MadeToken,
  NewToken,
  NewUser,
  NewWorkspace,
  Overview,
  Recovery,
  Session,
  SignedIn,
  Stats,
  Timeline,
  TokenList,
  UserChanges,
  UserPage,
  WorkspaceChanges,
  WorkspacePage,
} from "./types";

const PREFIX = "/api/v1";

/** An error response of the API. Its code is NETWORK if there was no response. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryAfterSeconds: number | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

type UnauthorizedListener = () => void;
let onUnauthorized: UnauthorizedListener = () => {};

/** Sets the function that is called on every 401, except one of the sign-in. */
export function setUnauthorizedListener(listener: UnauthorizedListener): void {
  onUnauthorized = listener;
}

async function request<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const init: RequestInit = { method, credentials: "same-origin", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    init.headers = { ...init.headers, "Content-Type": "application/json" };
    init.body = JSON.stringify(body);
  }
  if (signal) init.signal = signal;
  const response = await sendChecked(path, init);
  if (response.status === 204) return undefined as T;
  return (await response.json()) as T;
}

/** Sends a request, and throws the error of a response that has one. */
async function sendChecked(path: string, init: RequestInit): Promise<Response> {
  const response = await send(PREFIX + path, init);
  noteServerTime(response.headers.get("Date"));
  if (!response.ok) {
    const error = await readError(response);
    if (error.status === 401 && path !== "/login") onUnauthorized();
    throw error;
  }
  return response;
}

/** Calls `take` with each piece of a response, until it ends. Throws an ApiError if it ends incomplete. */
async function stream(path: string, take: (piece: Uint8Array) => void, signal: AbortSignal): Promise<void> {
  const response = await sendChecked(path, { credentials: "same-origin", signal });
  const reader = response.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read().catch((cause: unknown) => {
      if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
      throw new ApiError(0, "NETWORK", "");
    });
    if (done) return;
    take(value);
  }
}

async function send(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === "AbortError") throw cause;
    throw new ApiError(0, "NETWORK", "");
  }
}

async function readError(response: Response): Promise<ApiError> {
  const retryAfter = Number(response.headers.get("Retry-After"));
  const seconds = Number.isFinite(retryAfter) && retryAfter > 0 ? retryAfter : null;
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { code: string; message: string } };
    return new ApiError(response.status, error.code, error.message, seconds);
  } catch {
    // A proxy answered with a page instead of JSON, so only the status is known.
    return new ApiError(response.status, "UNEXPECTED", `HTTP ${response.status}`, seconds);
  }
}

export interface ListQuery {
  limit?: number;
  offset?: number;
  phase?: string;
  q?: string;
  trash?: boolean;
}

function withQuery(path: string, query: object): string {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== "" && value !== false) parameters.set(key, String(value));
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

const workspacePath = (id: string, rest = "") => `/workspaces/${encodeURIComponent(id)}${rest}`;
const userPath = (id: string, rest = "") => `/users/${encodeURIComponent(id)}${rest}`;
/** The path of one's own tokens, or of those of the account with this id. */
const tokensPath = (accountId: string | null) =>
  accountId === null ? "/tokens" : userPath(accountId, "/tokens");

export const eventsUrl = `${PREFIX}/events`;
export const openApiUrl = `${PREFIX}/openapi.json`;

export const api = {
  login: (username: string, password: string) => request<SignedIn>("POST", "/login", { username, password }),
  logout: () => request<void>("POST", "/logout"),
  session: () => request<Session>("GET", "/session"),
  changePassword: (current: string, next: string) =>
    request<void>("POST", "/session/password", { current, new: next }),

  confirmPassword: (password: string) => request<void>("POST", "/session/confirm", { password }),

  tokens: (accountId: string | null, signal?: AbortSignal) =>
    request<TokenList>("GET", tokensPath(accountId), undefined, signal),
  makeToken: (accountId: string | null, token: NewToken) =>
    request<MadeToken>("POST", tokensPath(accountId), token),
  revokeToken: (accountId: string | null, id: string) =>
    request<void>("DELETE", `${tokensPath(accountId)}/${encodeURIComponent(id)}`),

  workspaces: (query: ListQuery, signal?: AbortSignal) =>
    request<WorkspacePage>("GET", withQuery("/workspaces", query), undefined, signal),
  workspace: (id: string, signal?: AbortSignal) =>
    request<DetailedWorkspace>("GET", workspacePath(id), undefined, signal),
  createWorkspace: (workspace: NewWorkspace) => request<DetailedWorkspace>("POST", "/workspaces", workspace),
  patchWorkspace: (id: string, changes: WorkspaceChanges) =>
    request<DetailedWorkspace>("PATCH", workspacePath(id), changes),
  deleteWorkspace: (id: string) => request<void>("DELETE", workspacePath(id)),
  deleteWithoutArchive: (id: string, name: string) =>
    request<void>("DELETE", workspacePath(id, `?without_archive=true&confirm=${encodeURIComponent(name)}`)),
  recover: (id: string, choice: Recovery) =>
    request<DetailedWorkspace>("POST", workspacePath(id, "/recover"), choice),
  cancel: (id: string) => request<DetailedWorkspace>("POST", workspacePath(id, "/cancel"), {}),
  undelete: (id: string) => request<DetailedWorkspace>("POST", workspacePath(id, "/undelete"), {}),
  extend: (id: string, seconds: number) =>
    request<DetailedWorkspace>("POST", workspacePath(id, "/extend"), { seconds }),
  timeline: (id: string, signal?: AbortSignal) =>
    request<Timeline>("GET", workspacePath(id, "/timeline"), undefined, signal),
  archives: (id: string, signal?: AbortSignal) =>
    request<ArchiveList>("GET", workspacePath(id, "/archives"), undefined, signal),
  archiveUrl: (id: string, archiveOpId: string) =>
    `${PREFIX}${withQuery(workspacePath(id, "/archive"), { archive_op_id: archiveOpId })}`,
  restoreArchive: (id: string, archiveOpId: string) =>
    request<DetailedWorkspace>("POST", workspacePath(id, "/restore"), { archive_op_id: archiveOpId }),
  stats: (id: string, signal?: AbortSignal) =>
    request<Stats>("GET", workspacePath(id, "/stats"), undefined, signal),
  leases: (id: string, signal?: AbortSignal) =>
    request<LeaseList>("GET", workspacePath(id, "/leases"), undefined, signal),
  deleteLease: (id: string, leaseId: string) =>
    request<void>("DELETE", workspacePath(id, `/leases/${encodeURIComponent(leaseId)}`)),
  logs: (
    id: string,
    query: { lines: number; follow: boolean },
    take: (piece: Uint8Array) => void,
    signal: AbortSignal,
  ) => stream(withQuery(workspacePath(id, "/logs"), query), take, signal),
  images: () => request<Images>("GET", "/images"),

  users: (query: ListQuery, signal?: AbortSignal) =>
    request<UserPage>("GET", withQuery("/users", query), undefined, signal),
  createUser: (user: NewUser) => request<Account>("POST", "/users", user),
  patchUser: (id: string, changes: UserChanges) => request<Account>("PATCH", userPath(id), changes),
  deleteUser: (id: string) => request<void>("DELETE", userPath(id)),

  adminWorkspaces: (query: ListQuery, signal?: AbortSignal) =>
    request<WorkspacePage>("GET", withQuery("/admin/workspaces", query), undefined, signal),
  audit: (query: AuditQuery & { limit: number; before?: number }, signal?: AbortSignal) =>
    request<AuditPage>("GET", withQuery("/admin/audit", query), undefined, signal),
  openApi: (signal?: AbortSignal) => request<ApiDocument>("GET", "/openapi.json", undefined, signal),
  overview: (signal?: AbortSignal) => request<Overview>("GET", "/admin/overview", undefined, signal),
};
