/**
 * Where to go after signing in. Only a path of this origin is accepted, so that a link to the sign-in page
 * cannot send anyone elsewhere.
 */
export function safeNext(next: string | null, origin = location.origin): string {
  if (!next || !/^\/(?![/\\])/.test(next)) return "/";
  try {
    const url = new URL(next, origin);
    // Browsers drop tabs and line breaks inside an address, which can turn "/<tab>/host" into "//host".
    if (url.origin !== origin || url.pathname.startsWith("//")) return "/";
    if (url.pathname === "/login") return "/";
    return url.pathname + url.search + url.hash;
  } catch {
    return "/";
  }
}

/** Paths of a workspace are served by the gateway, not by this application. */
export const leavesDashboard = (path: string): boolean => /^\/(w|api)(\/|$)/.test(path);
