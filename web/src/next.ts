/**
 * Returns the path to open after the sign-in. Only paths of this origin are accepted, so that a link to the
 * sign-in page cannot redirect to another site.
 */
export function safeNext(next: string | null, origin = location.origin): string {
  if (!next || !/^\/(?![/\\])/.test(next)) return "/";
  try {
    const url = new URL(next, origin);
    // Browsers drop tabs and line breaks inside an address, which can turn "/<tab>/host" into
    // "//host".
    if (url.origin !== origin || url.pathname.startsWith("//")) return "/";
    if (url.pathname === "/login") return "/";
    return url.pathname + url.search + url.hash;
  } catch {
    return "/";
  }
}

/** Returns whether the gateway or the API serves the path, not this application. */
export const leavesDashboard = (path: string): boolean => /^\/(w|api)(\/|$)/.test(path);
