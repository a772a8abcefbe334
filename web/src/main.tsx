import { render } from "preact";

import { App } from "./app";
import { warnBeforeLosingDrafts } from "./state/drafts";
import { startRouter } from "./state/router";
import { loadSession } from "./state/session";
import { startShortcuts } from "./state/shortcuts";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/components.css";
import "./styles/forms.css";
import "./styles/pages.css";
import "./styles/login.css";
import "./styles/admin.css";

startRouter();
startShortcuts();
warnBeforeLosingDrafts();
render(<App />, document.getElementById("app")!);
void loadSession();
