import { computed, signal } from "@preact/signals";

import { leavesDashboard } from "../next";

export type Route =
  | { page: "login" }
  | { page: "workspaces" }
  | { page: "workspace"; id: string }
  | { page: "trash" }
  | { page: "account" }
  | { page: "docs" }
  | { page: "admin-overview" }
  | { page: "admin-users" }
  | { page: "admin-workspaces" }
  | { page: "admin-audit" }
  | { page: "not-found" };

const FIXED: Record<string, Route> = {
  "/": { page: "workspaces" },
  "/login": { page: "login" },
  "/trash": { page: "trash" },
  "/account": { page: "account" },
  "/docs": { page: "docs" },
  "/admin": { page: "admin-overview" },
  "/admin/users": { page: "admin-users" },
  "/admin/workspaces": { page: "admin-workspaces" },
  "/admin/audit": { page: "admin-audit" },
};

export function routeOf(pathname: string): Route {
  const fixed = FIXED[pathname.length > 1 ? pathname.replace(/\/+$/, "") : pathname];
  if (fixed) return fixed;
  const id = /^\/workspaces\/([0-9a-z]+)\/?$/.exec(pathname)?.[1];
  return id ? { page: "workspace", id } : { page: "not-found" };
}

export interface Address {
  pathname: string;
  search: string;
}

const here = (): Address => ({ pathname: location.pathname, search: location.search });

export const address = signal<Address>(here());
export const route = computed<Route>(() => routeOf(address.value.pathname));

export function navigate(to: string, { replace = false } = {}): void {
  if (leavesDashboard(to)) {
    location.assign(to);
    return;
  }
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  address.value = here();
  window.scrollTo(0, 0);
}

/** Handles plain clicks on links to pages of the dashboard. The browser handles all others. */
function followLink(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || link.target || link.origin !== location.origin || leavesDashboard(link.pathname)) return;
  if (link.hash && link.pathname === location.pathname) return;
  event.preventDefault();
  navigate(link.pathname + link.search + link.hash);
}

export function startRouter(): void {
  window.addEventListener("popstate", () => {
    address.value = here();
  });
  document.addEventListener("click", followLink);
}
