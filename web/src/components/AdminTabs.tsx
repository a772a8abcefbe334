import { useEffect, useRef } from "preact/hooks";

import { messages } from "../i18n";
import { route } from "../state/router";
import { NavLink } from "./NavLink";

export function AdminTabs() {
  const text = messages.value.admin;
  const page = route.value.page;
  const tabs = useRef<HTMLElement>(null);
  // On a phone the tabs do not fit, and the current one may be off screen.
  useEffect(() => {
    tabs.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [page]);
  return (
    <nav ref={tabs} class="tabs" aria-label={text.label}>
      <NavLink href="/admin" current={page === "admin-overview"} testId="admin-overview">
        {text.overview}
      </NavLink>
      <NavLink href="/admin/users" current={page === "admin-users"} testId="admin-users">
        {text.users}
      </NavLink>
      <NavLink href="/admin/workspaces" current={page === "admin-workspaces"} testId="admin-workspaces">
        {text.workspaces}
      </NavLink>
      <NavLink href="/admin/audit" current={page === "admin-audit"} testId="admin-audit">
        {messages.value.audit.title}
      </NavLink>
    </nav>
  );
}
