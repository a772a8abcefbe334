import { useEffect } from "preact/hooks";

import { ErrorNote } from "./components/ErrorNote";
import { Shell } from "./components/Shell";
import { messages } from "./i18n";
import { AccountPage } from "./pages/AccountPage";
import { AdminAuditPage } from "./pages/AdminAuditPage";
import { AdminOverviewPage } from "./pages/AdminOverviewPage";
import { AdminUsersPage } from "./pages/AdminUsersPage";
import { AdminWorkspacesPage } from "./pages/AdminWorkspacesPage";
import { ApiDocsPage } from "./pages/ApiDocsPage";
import { LoginPage } from "./pages/LoginPage";
import { NotFoundPage } from "./pages/NotFoundPage";
import { TrashPage } from "./pages/TrashPage";
import { WorkspacePage } from "./pages/WorkspacePage";
import { WorkspacesPage } from "./pages/WorkspacesPage";
import { startLive, stopLive } from "./state/live";
import { type Route, route } from "./state/router";
import { isAdmin, loadSession, session, sessionProblem } from "./state/session";

export function App() {
  const userId = session.value?.user.id;
  useEffect(() => {
    if (!userId) return;
    startLive();
    return stopLive;
  }, [userId]);

  if (route.value.page === "login") return <LoginPage />;
  if (session.value) {
    return (
      <Shell>
        <Page route={route.value} />
      </Shell>
    );
  }
  return <Waiting />;
}

function Page({ route }: { route: Route }) {
  if (route.page.startsWith("admin-") && !isAdmin.value) return <NotFoundPage />;
  switch (route.page) {
    case "workspaces":
      return <WorkspacesPage />;
    case "workspace":
      return <WorkspacePage key={route.id} id={route.id} />;
    case "trash":
      return <TrashPage />;
    case "account":
      return <AccountPage />;
    case "docs":
      return <ApiDocsPage />;
    case "admin-overview":
      return <AdminOverviewPage />;
    case "admin-users":
      return <AdminUsersPage />;
    case "admin-workspaces":
      return <AdminWorkspacesPage />;
    case "admin-audit":
      return <AdminAuditPage />;
    case "login":
    case "not-found":
      return <NotFoundPage />;
  }
}

function Waiting() {
  const problem = sessionProblem.value;
  if (!problem) return null;
  return (
    <main class="waiting">
      <ErrorNote error={problem} />
      <button type="button" class="button" onClick={() => void loadSession()}>
        {messages.value.errors.retry}
      </button>
    </main>
  );
}
