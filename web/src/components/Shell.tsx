import type { ComponentChildren } from "preact";

import { DialogHost } from "../dialogs/DialogHost";
import { messages } from "../i18n";
import { announcement, connection } from "../state/live";
import { route } from "../state/router";
import { isAdmin, session, signOut } from "../state/session";
import { useTask } from "../state/task";
import { Brand } from "./Brand";
import { ErrorNote } from "./ErrorNote";
import { LanguageSwitch } from "./LanguageSwitch";
import { NavLink } from "./NavLink";

export function Shell({ children }: { children: ComponentChildren }) {
  const text = messages.value;
  return (
    <>
      <a class="skip" href="#main">
        {text.skipToContent}
      </a>
      <Header />
      <div role="status" class="connection">
        {connection.value === "lost" && <p class="banner">{text.live.lost}</p>}
      </div>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <div class="visually-hidden" aria-live="polite">
        {announcement.value}
      </div>
      <DialogHost />
    </>
  );
}

function Header() {
  const text = messages.value.nav;
  const leaving = useTask();
  const page = route.value.page;
  return (
    <header class="top">
      <div class="top-inner">
        <Brand />
        <nav aria-label={text.label}>
          <NavLink href="/" current={page === "workspaces" || page === "workspace"} testId="nav-workspaces">
            {text.workspaces}
          </NavLink>
          <NavLink href="/trash" current={page === "trash"} testId="nav-trash">
            {text.trash}
          </NavLink>
          {isAdmin.value && (
            <NavLink href="/admin" current={page.startsWith("admin-")} testId="nav-admin">
              {text.admin}
            </NavLink>
          )}
        </nav>
        <div class="top-end">
          <LanguageSwitch />
          <a
            class="button button-quiet"
            href="/account"
            data-testid="nav-account"
            aria-label={`${text.account}: ${session.value?.user.username}`}
          >
            {session.value?.user.username}
          </a>
          <button
            type="button"
            class="button button-quiet"
            data-testid="sign-out"
            aria-disabled={leaving.busy}
            onClick={() => void leaving.run(signOut)}
          >
            {text.signOut}
          </button>
        </div>
      </div>
      <ErrorNote error={leaving.error} onDismiss={leaving.clear} />
    </header>
  );
}
